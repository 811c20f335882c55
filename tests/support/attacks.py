"""Commands on hostile files, each in a fork with limits: what it said, its exit code, what it cost, what it left.

`python attacks.py PLACE` sends every file of the corpus to a command that reads data; `python attacks.py PLACE GOOD`
spoils copies of the good folders (see `good_folders.py`) and sends each to a command that reads its kind. The commands
take turns: what reads a file is the same in all of them. Both print faults as JSON.
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
from itertools import cycle
from pathlib import Path

from good_folders import ITEM, NEW, TRAINING
from hostile import DATA, TALKING
from hostile_folders import CHECKPOINTS, DAMAGED_PARTS, PARTS, RESULTS, RUNS, STOPPED, STUDIES, TRAINED, VERDICTS, Spoil
from hostile_texts import TEXT_FOLDERS
from memory import data_memory, limit_data_memory

from pluribus.data import unpacking

SECONDS, BYTES, PATIENCE = 15, 8 * 10**8, 60  # BYTES beyond what the program has before it runs a command

DECODING = 1.0  # of the 5 seconds that a file may take

ALLOWED = unpacking.SECONDS

AS_USERS = "a .jpg of 6,000 scans"  # has all of them

PROGRAMS = ("gs", "gswin64c", "magick", "convert", "ffmpeg", "sh", "bash")

COMMANDS = {
    "train": ["--out", "new"],
    "compare": ["--methods", "single", "--out", "new"],
    "landscape": ["--out", "page.html"],
    "align": ["one.pt", "two.pt", "--model", "mlp"],
}


@dataclass
class Attack:
    """What came of one command: a signal that ended it is a negative exit code."""

    code: int
    out: str
    err: str
    seconds: float
    changed: list[str]

    @property
    def ended_badly(self) -> str:
        """What is wrong whatever was given; "" where nothing is."""
        if self.code == -signal.SIGKILL:
            return "it waited for ever"
        if self.code < 0:
            return f"signal {-self.code} ended it"
        if "Traceback" in self.out + self.err or "This is a bug: please report it" in self.err:
            return "a raw error"
        return ""

    def fault_of_going_on(self, name: str) -> str:
        """What is wrong where the command was to name what is spoiled and go on without it."""
        if self.ended_badly or self.code:
            return self.ended_badly or f"exit code {self.code}"
        said = "".join((self.out + self.err).split())  # lines are broken anywhere
        return "" if name in said else f"it did not name {name}"

    @property
    def fault(self) -> str:
        """What is wrong with how the command took it; "" where it refused as it should."""
        if self.ended_badly:
            return self.ended_badly
        if self.code != 2:
            return f"exit code {self.code}"
        if self.changed:
            return f"it wrote {', '.join(self.changed)}"
        if self.out or len(self.err.splitlines()) != 1 or len(self.err) > 3000:
            return "it said more than a line"
        return ""


class Attacker:
    """Runs commands in forks of this process: what one had to load, the next finds loaded.

    Args:
        top: a folder for programs that leave a mark when they are started, and for the mark of pickles
    """

    def __init__(self, top: Path):
        programs = top / "programs"
        programs.mkdir()
        self.canary = programs / "canary"
        for name in PROGRAMS:
            (programs / name).write_text(f"#!/bin/sh\n: > '{self.canary}'\nexit 1\n")
            (programs / name).chmod(0o755)
        os.environ["PATH"] = str(programs)
        self.main = importlib.import_module("pluribus.cli.app").main
        self.loading = time.process_time()  # every command would have to load as much

    def run(self, place: Path, *words: str) -> Attack:
        """The command in the folder, which it must leave as it was."""
        before = _tree(place)
        files = [tempfile.TemporaryFile("w+") for _ in range(3)]
        with files[0] as out, files[1] as err, files[2] as loaded:
            started = resource.getrusage(resource.RUSAGE_CHILDREN)
            child = os.fork()
            if not child:
                self._be_command(place, words, out, err, loaded)
            status = _wait(child)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            out.seek(0)
            err.seek(0)
            loaded.seek(0)
            said = out.read(), err.read()
            self._load(loaded.read().split())
        seconds = self.loading + used.ru_utime + used.ru_stime - started.ru_utime - started.ru_stime
        changed = sorted({str(path.relative_to(place)) for path, _ in before ^ _tree(place)})
        return Attack(os.waitstatus_to_exitcode(status), *said, seconds, changed)

    def hear(self) -> str:
        """What is wrong if a program was started since it was last asked."""
        started = self.canary.exists()
        self.canary.unlink(missing_ok=True)
        return "it started a program" if started else ""

    def _load(self, names: list[str]) -> None:
        started = time.process_time()
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self.loading += time.process_time() - started

    def _be_command(self, place: Path, words: tuple[str, ...], out, err, loaded) -> None:
        known = set(sys.modules)
        left = max(SECONDS // 2, SECONDS - int(self.loading))
        resource.setrlimit(resource.RLIMIT_CPU, (left, left + 1))
        limit_data_memory(data_memory() + BYTES)
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
            print(*(name for name in sys.modules if name not in known), file=loaded, flush=True)
        os._exit(code)


def _tree(place: Path) -> set[tuple[Path, int]]:
    return {(path, path.lstat().st_mtime_ns) for path in place.rglob("*")}


def _wait(child: int) -> int:
    """The status of a child; one that does nothing for long is ended, one that is slow on a busy machine is not."""
    used, until = "", 0.0
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if used != (now := _used(child)):
            used, until = now, time.monotonic() + PATIENCE
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.005)


def _used(child: int) -> str:
    """The time of the processor that a child has used, in its own unit."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return " ".join(fields[11:13])


@dataclass(frozen=True)
class Target:
    """A kind of folder, the ways to spoil it, and the commands that read it.

    Args:
        named: what the command is to name before it goes on without it, where it is not to refuse
    """

    folder: str
    spoils: dict[str, Spoil]
    commands: dict[str, list[str]]
    named: str = ""


PAGE = ["landscape", "--ensemble", "sent", "--out", "page.html"]

NETWORK = ["--model", "mlp", "--shape", "4", "--classes", "3", "--width", "0.05", "--out", "aligned.safetensors"]

SEEDS = ["--methods", "single", "--seeds", "2", "--jobs", "1", "--yes", "--out", "study"]

TEXTS = ["--data", "text:reviews.csv", "--target", "label", "--model", "hf:bert", "--out", "new", "--quiet"]

TARGETS = {
    "a trained folder": Target(
        "sent",
        TRAINED,
        {"predict": ["predict", "sent", NEW], "export": ["export", "sent", "x.onnx"], "landscape": PAGE},
    ),
    "a run": Target("sent", RUNS, {"landscape": PAGE}),
    "a training": Target("stopped", STOPPED, {"train": ["train", *TRAINING, "--out", "stopped"]}, "last.ckpt"),
    "a checkpoint": Target(
        "networks",
        CHECKPOINTS,
        {
            "align": ["align", "networks/one.pt", "networks/two.pt", *NETWORK],
            "train": ["train", *TRAINING, "--weights", "networks/one.pt", "--out", "new", "--quiet"],
        },
    ),
    "a study": Target("study", STUDIES, {"report": ["report", "study"]}),
    "a result": Target(
        "study", RESULTS, {"report": ["report", "study"], "compare": ["compare", *TRAINING, *SEEDS]}, "results/"
    ),
    "a part": Target("claims", PARTS, {"reproduce": ["reproduce", ITEM, "--out", "claims"]}),
    "a damaged part": Target("claims", DAMAGED_PARTS, {"reproduce": ["reproduce", ITEM, "--out", "claims"]}, ".npz"),
    "a verdict": Target("claims", VERDICTS, {"reproduce": ["reproduce", "--out", "claims"]}),
    "texts": Target("bert", TEXT_FOLDERS, {"train": ["train", *TEXTS]}),
}


def attack_data(top: Path) -> dict[str, str]:
    """What went wrong with each file, and the command that it was sent to."""
    attacker, turns, found = Attacker(top), cycle(COMMANDS), {}
    for name in DATA:
        if name != TALKING:
            command = next(turns)
            found[f"{command}: {name}"] = _attack(attacker, top / "data", name, command)
    return {where: fault for where, fault in found.items() if fault}


def attack_folders(top: Path, good: Path) -> dict[str, str]:
    """What went wrong with each spoiled folder, and the command that it was sent to."""
    attacker, found = Attacker(top), {}
    for target in TARGETS.values():
        for name, command in zip(target.spoils, cycle(target.commands)):
            fault = _attack_folder(attacker, top / "place", good, target, name, target.commands[command])
            found[f"{command}: {name}"] = fault
    return {where: fault for where, fault in found.items() if fault}


def _attack_folder(attacker: Attacker, place: Path, good: Path, target: Target, name: str, words: list[str]) -> str:
    others = {other.folder for other in TARGETS.values()} - {target.folder}
    shutil.copytree(good, place, ignore=lambda at, names: others & set(names) if Path(at) == good else [])
    _in_fork(lambda: target.spoils[name](place / target.folder, attacker.canary))
    attack = attacker.run(place, *words)
    fault = attack.fault_of_going_on(target.named) if target.named else attack.fault
    shutil.rmtree(place)
    return attacker.hear() or (fault and f"{fault}: {attack.err[-300:]}")


def _in_fork(work) -> None:
    """Do something that leaves no trace in this process: what it takes would count against all that follow."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _attack(attacker: Attacker, place: Path, name: str, command: str) -> str:
    unpacking.SECONDS = ALLOWED if name == AS_USERS else DECODING
    place.mkdir()
    spec = _write(name, place, attacker.canary)
    for weights in ("one.pt", "two.pt"):
        (place / weights).touch()
    words = (command, *COMMANDS[command], "--data", spec, "--data-dir", str(place), "--target", "b")
    fault = attacker.run(place, *words).fault
    shutil.rmtree(place)
    return attacker.hear() or fault


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
    top, *folders = sys.argv[1:]
    faults = attack_folders(Path(top), Path(folders[0])) if folders else attack_data(Path(top))
    print(json.dumps(faults, indent=1))
