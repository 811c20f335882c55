"""Commands on hostile files, each in a fork with limits: what it said, its exit code, what it cost, what it left.

`python attacks.py FOLDER` sends every file of the corpus to every command that reads data, and prints faults as JSON.
"""

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hostile import DATA

SECONDS, BYTES, PATIENCE = 10, 10**9, 60

PROGRAMS = ("gs", "gswin64c", "magick", "convert", "ffmpeg", "sh", "bash")

COMMANDS = {
    "train": ["--out", "new"],
    "compare": ["--methods", "single", "--out", "new"],
    "landscape": ["--out", "page.html"],
    "align": ["one.pt", "two.pt", "--model", "mlp"],
}

LOADED = ("numpy", "torch", "pandas", "PIL.Image", "PIL.ImageOps", "pyarrow.parquet", "scipy.io")


@dataclass
class Attack:
    """What came of one command: a signal that ended it is a negative exit code."""

    code: int
    out: str
    err: str
    seconds: float
    changed: list[str]

    @property
    def fault(self) -> str:
        """What is wrong with how the command took it; "" where it refused as it should."""
        if self.code == -signal.SIGKILL:
            return "it waited for ever"
        if self.code < 0:
            return f"signal {-self.code} ended it"
        if "Traceback" in self.out + self.err or "This is a bug: please report it" in self.err:
            return "a raw error"
        if self.code != 2:
            return f"exit code {self.code}"
        if self.changed:
            return f"it wrote {', '.join(self.changed)}"
        if self.out or len(self.err.splitlines()) != 1 or len(self.err) > 3000:
            return "it said more than a line"
        return ""


class Attacker:
    """Runs commands in forks of this process, which has loaded what they need.

    Args:
        programs: a folder for programs that leave a mark when they are started, and for the mark of pickles
    """

    def __init__(self, programs: Path, main: str = "pluribus.cli.app"):
        self.canary = programs / "canary"
        for name in PROGRAMS:
            (programs / name).write_text(f"#!/bin/sh\n: > '{self.canary}'\nexit 1\n")
            (programs / name).chmod(0o755)
        os.environ["PATH"] = str(programs)
        for name in LOADED:
            importlib.import_module(name)
        self.main = importlib.import_module(main).main
        self.loading = time.process_time()  # every command would have to load as much

    def run(self, place: Path, *words: str) -> Attack:
        """The command in the folder, which it must leave as it was."""
        before = _tree(place)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            started = resource.getrusage(resource.RUSAGE_CHILDREN)
            child = os.fork()
            if not child:
                self._be_command(place, words, out, err)
            status = _wait(child)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            out.seek(0)
            err.seek(0)
            said = out.read(), err.read()
        seconds = self.loading + used.ru_utime + used.ru_stime - started.ru_utime - started.ru_stime
        changed = sorted({str(path.relative_to(place)) for path, _ in before ^ _tree(place)})
        return Attack(os.waitstatus_to_exitcode(status), *said, seconds, changed)

    def _be_command(self, place: Path, words: tuple[str, ...], out, err) -> None:
        left = max(1, SECONDS - int(self.loading))
        resource.setrlimit(resource.RLIMIT_CPU, (left, left + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.chdir(place)
        sys.argv = ["pluribus", *map(str, words)]
        code = 99
        try:
            self.main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException as error:
            print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _tree(place: Path) -> set[tuple[Path, int]]:
    return {(path, path.lstat().st_mtime_ns) for path in place.rglob("*")}


def _wait(child: int) -> int:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def attack_all(top: Path) -> dict[str, str]:
    """What went wrong with each command on each file."""
    (top / "programs").mkdir()
    attacker = Attacker(top / "programs")
    return {
        f"{command}: {name}": fault
        for name in DATA
        for command, fault in _attack(attacker, top / "data", name).items()
        if fault
    }


def _attack(attacker: Attacker, place: Path, name: str) -> dict[str, str]:
    place.mkdir()
    spec = _write(name, place, attacker.canary)
    for weights in ("one.pt", "two.pt"):
        (place / weights).touch()
    found = {}
    for command, options in COMMANDS.items():
        fault = attacker.run(place, command, *options, "--data", spec, "--data-dir", str(place), "--target", "b").fault
        found[command] = "it started a program" if attacker.canary.exists() else fault
        attacker.canary.unlink(missing_ok=True)
    shutil.rmtree(place)
    return found


def _write(name: str, place: Path, canary: Path) -> str:
    """Write a file of the corpus in a fork: what that takes would count against the limits of all that follow."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.write(send, DATA[name](place, canary).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(send)
    with os.fdopen(receive) as told:
        return told.read()


if __name__ == "__main__":
    print(json.dumps(attack_all(Path(sys.argv[1]))))
