"""Every hostile data file gets a message: in seconds, in little memory, and nothing runs or is written."""

import json
import subprocess
import sys

import pytest
from hostile import DATA, LONG

HERE = [name for name in DATA if name not in LONG]

# In a process of its own, where every program that is started and every file that is written is seen.
READ_ALL = """
import json, resource, sys, time
from pathlib import Path
import pluribus.data.tables, scipy.io, pandas, pyarrow.parquet, PIL.Image, PIL.ImageOps
from pluribus.data import unpacking
from pluribus.data.catalogue import load
from hostile import DATA, LONG
from memory import forget_peak, peak_memory

resource.setrlimit(resource.RLIMIT_CPU, (240, 240))
unpacking.SECONDS = 1.0  # of the 5 that a file may take: a command is tested with all of them
folder, done = Path(sys.argv[1]), {}
for name, write in ((name, write) for name, write in DATA.items() if name not in LONG):
    (place := folder / name).mkdir()
    written = write(place, folder / "canary")
    forget_peak()
    seen = []
    def watch(event, args):
        if seen is not None and (
            event in ("subprocess.Popen", "os.posix_spawn")  # the second as well from Python 3.13 on
            and args[0] != sys.executable  # as the one that decodes Parquet files
            or event in ("os.system", "os.exec", "os.fork", "pty.spawn")
            or event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        ):
            seen.append(f"{event} {args[0]}")
    if not done:
        sys.addaudithook(lambda event, args: watch(event, args))
    started, before = time.process_time(), peak_memory()
    try:
        load(written, folder=place, target="b")
        said = "nothing"
    except (ValueError, FileNotFoundError) as error:
        said = f"message: {error}"
    except BaseException as error:
        said = f"raw {type(error).__name__}: {error}"
    done[name] = said, time.process_time() - started, peak_memory() - before, list(seen)
    seen = None
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
print(json.dumps([done, (folder / "canary").exists()]))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    ran = subprocess.run([sys.executable, "-W", "error", "-c", READ_ALL, str(folder)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", HERE)
def test_a_hostile_file_gets_a_message_and_does_nothing(outcome, name):
    said, seconds, megabytes, seen = outcome[0][name]
    assert said.startswith("message: ") and len(said) < 3000
    assert seconds < 10 and megabytes < 750, (seconds, megabytes)
    assert seen == []


def test_no_canary_died(outcome):
    assert outcome[1] is False


@pytest.mark.parametrize("name", [name for name in HERE if "GB" in name or "640 MB" in name])
def test_what_is_too_large_names_the_option_that_allows_it(outcome, name):
    assert "--unpack-limit" in outcome[0][name][0]
