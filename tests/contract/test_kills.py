"""Kills at random moments: what was written stays whole, and the same work, started again, ends as without a kill."""

import json
import subprocess
import sys

import kills
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", kills.KINDS)
def test_work_that_is_killed_and_started_again_ends_as_without_a_kill(tmp_path, kind):
    ran = subprocess.run([sys.executable, kills.__file__, tmp_path, kind, "3"], capture_output=True, text=True)
    found = json.loads(ran.stdout)
    assert found["faults"] == [] and found["before the end"] >= 1, ran.stderr
