"""Commands on hostile files, each in a fork with limits: what it said, its exit code, what it cost, what it left.

`python attacks.py PLACE` sends every file of the corpus to a command that reads data; `python attacks.py PLACE GOOD`
spoils copies of the good folders (see `good_folders.py`) and sends each to a command that reads its kind. The commands
take turns: what reads a file is the same in all of them. Both print faults as JSON.
"""

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from good_folders import ITEM, NEW, TRAINING
from hostile import DATA, TALKING
from hostile_folders import CHECKPOINTS, DAMAGED_PARTS, PARTS, RESULTS, RUNS, STOPPED, STUDIES, TRAINED, VERDICTS, Spoil
from hostile_texts import TEXT_FOLDERS
from memory import data_memory, limit_data_memory

from pluribus.data import unpacking

SECONDS, BYTES = 15, 8 * 10**8  # of the processor; beyond what the program has before it runs a command
PATIENCE = 900  # seconds after which a command waits for ever; a busy machine takes its time

ALLOWED, DECODING = unpacking.SECONDS, 1.0  # of decoding one file

AS_USERS = "a .jpg of 6,000 scans"  # has all of them

PROGRAMS = ("gs", "gswin64c", "magick", "convert", "ffmpeg", "sh", "bash")

NEEDED = ("pandas", "pyarrow.parquet", "scipy.io", "PIL.ImageOps", "lightning.pytorch", "safetensors", "transformers")

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
    changed: list[str]

    def fault(self, named: str) -> str:
        """What is wrong with how the command took it; "" where it did as it should: refuse, or name and go on."""
        if self.code < 0:
            return "it waited for ever" if self.code == -signal.SIGALRM else f"signal {-self.code} ended it"
        if "Traceback" in self.out + self.err or "This is a bug: please report it" in self.err:
            return "a raw error"
        if self.code != (0 if named else 2):
            return f"exit code {self.code}"
        if named:
            said = "".join((self.out + self.err).split())  # lines are broken anywhere
            return "" if named in said else f"it did not name {named}"
        if self.changed:
            return f"it wrote {', '.join(self.changed)}"
        if self.out or len(self.err.splitlines()) != 1 or len(self.err) > 3000:
            return "it said more than a line"
        return ""


class Attacker:
    """Runs commands in forks of this process, which has loaded what they need.

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
        for name in NEEDED:
            importlib.import_module(name)

    def run(self, place: Path, *words: str) -> Attack:
        """The command in the folder, which it must leave as it was."""
        before = _tree(place)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if not child:
                self._be_command(place, words, out, err)
            status = os.waitpid(child, 0)[1]
            out.seek(0)
            err.seek(0)
            changed = sorted({str(path.relative_to(place)) for path, _ in before ^ _tree(place)})
            return Attack(os.waitstatus_to_exitcode(status), out.read(), err.read(), changed)

    def hear(self) -> str:
        """What is wrong if a program was started since it was last asked."""
        started = self.canary.exists()
        self.canary.unlink(missing_ok=True)
        return "it started a program" if started else ""

    def _be_command(self, place: Path, words: tuple[str, ...], out, err) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        limit_data_memory(data_memory() + BYTES)
        signal.alarm(PATIENCE)
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
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _tree(place: Path) -> set[tuple[Path, int]]:
    return {(path, path.lstat().st_mtime_ns) for path in place.rglob("*")}


def _in_fork(work: Callable[[], object]) -> str:
    """What some work says, which leaves no trace in this process: it would count against all that follow."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.write(send, str(work()).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(send)
    with os.fdopen(receive) as told:
        return told.read()


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
    fault = attack.fault(target.named)
    shutil.rmtree(place)
    return attacker.hear() or (fault and f"{fault}: {attack.err[-300:]}")


def _attack(attacker: Attacker, place: Path, name: str, command: str) -> str:
    unpacking.SECONDS = ALLOWED if name == AS_USERS else DECODING
    place.mkdir()
    spec = _in_fork(lambda: DATA[name](place, attacker.canary))
    for weights in ("one.pt", "two.pt"):
        (place / weights).touch()
    words = (command, *COMMANDS[command], "--data", spec, "--data-dir", str(place), "--target", "b")
    fault = attacker.run(place, *words).fault("")
    shutil.rmtree(place)
    return attacker.hear() or fault


if __name__ == "__main__":
    top, *folders = sys.argv[1:]
    faults = attack_folders(Path(top), Path(folders[0])) if folders else attack_data(Path(top))
    print(json.dumps(faults, indent=1))
