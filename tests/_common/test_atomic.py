"""Writing a file whole: it is there complete, or as it was."""

import stat

import pytest

from pluribus._common.atomic import atomic_write


def test_the_file_takes_its_place_at_the_end(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_whatever_fails_leaves_the_file_as_it_was(error, tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_as_readable_as_any_other(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    with atomic_write(tmp_path / "whole") as temporary:
        temporary.write_text("")
    assert stat.S_IMODE((tmp_path / "whole").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # which ended last
    assert list(tmp_path.iterdir()) == [path]
