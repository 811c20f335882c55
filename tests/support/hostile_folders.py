"""Folders that mean harm: each is spoiled by a function, small, and every command that reads it is to refuse it.

`make_folders` writes good ones, from which copies are spoiled: a trained folder "sent", checkpoints to align, a study,
stored parts of the claims court and a folder of transformers.
"""

import json
import os
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hostile import TEXTS, Trap, header_of, npy, npy_header, npz, with_header

from pluribus._common.signed_files import sign, write_signed_json

RECORD, WEIGHTS = "bundle.json", "ensemble.safetensors"

TERABYTE = 2**40

Spoil = Callable[[Path, Path], None]  # (folder, canary)


# ---------------------------------------------------------------- ways to spoil a file


def rewrite(path: Path, value: dict) -> None:
    """Write a JSON file of ours as somebody does who knows how its digest is made."""
    write_signed_json(path, {key: entry for key, entry in value.items() if key != "digest"})


def text(name: str, content: str) -> Spoil:
    return lambda folder, canary: (folder / name).write_text(content)


def entries(name: str, **values) -> Spoil:
    """Some entries of a JSON file replaced."""

    def spoil(folder: Path, canary: Path) -> None:
        rewrite(folder / name, {**json.loads((folder / name).read_text()), **values})

    return spoil


def without(name: str, *keys: str) -> Spoil:
    def spoil(folder: Path, canary: Path) -> None:
        known = json.loads((folder / name).read_text())
        rewrite(folder / name, {key: value for key, value in known.items() if key not in keys})

    return spoil


def put(name: str, make: Callable[[Path], object]) -> Spoil:
    """Something else in place of a file."""

    def spoil(folder: Path, canary: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


def link(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


def header(about: dict | None = None, name: str = WEIGHTS, **tensors) -> Spoil:
    """Entries of our own header of a safetensors file replaced, and what it says of its first tensors."""

    def spoil(folder: Path, canary: Path) -> None:
        found, rest = header_of(folder / name)
        first = next(one for one in found if one != "__metadata__")
        found[first] |= tensors
        if about:
            told = {**json.loads(found["__metadata__"]["pluribus"]), **about}
            found["__metadata__"]["pluribus"] = json.dumps(told)
        with_header(folder / name, found, rest)

    return spoil


def sparse(path: Path, content: bytes = b"", size: int = TERABYTE) -> None:
    """A file that holds nothing behind its beginning, and takes no room on the disk."""
    path.write_bytes(content)
    os.truncate(path, size)


def _terabyte_of_weights(folder: Path, canary: Path) -> None:
    found, _ = header_of(folder / WEIGHTS)
    names, size = [one for one in found if one != "__metadata__"], TERABYTE // 2
    found = {"__metadata__": found["__metadata__"]}
    found |= {
        name: {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    with_header(folder / WEIGHTS, found, b"")
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size + size * len(names))


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


def kind_of_number(dtype: str, factor: float) -> Spoil:
    def spoil(folder: Path, canary: Path) -> None:
        found, rest = header_of(folder / WEIGHTS)
        for name, entry in found.items():
            if name != "__metadata__":
                found[name] = {
                    **entry, "dtype": dtype, "data_offsets": [int(factor * at) for at in entry["data_offsets"]]
                }  # fmt: skip
        with_header(folder / WEIGHTS, found, (rest * 2)[: int(factor * len(rest))])

    return spoil


def _many_tensors(folder: Path, canary: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    with_header(folder / WEIGHTS, {f"t{i}": empty for i in range(100_001)}, b"")


def _code(spec: str) -> Spoil:
    def spoil(folder: Path, canary: Path) -> None:
        (folder.parent / "net.py").write_text(f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n")
        entries(RECORD, model=spec)(folder, canary)

    return spoil


# ---------------------------------------------------------------- a trained folder

CLAIMS = [
    {"width": 1e5},
    {"outputs": 10**12},
    {"shape": [3, 10**6, 10**6]},
    {"model": "timm:hf-hub:someone/something"},
    {"model": "nothing"},
    {"mean": [[1.0, 2.0], [3.0]]},
    {"std": [0.0]},
    {"classes": ["a", "b"]},
    {"threshold": {"value": 1.0}},
    {"encoding": None},
    {"encoding": {"kind": "images", "task": "classification", "classes": [], "shape": [3, 10**5, 10**5]}},
    {"format": 2},
]

ABOUT = [
    {"size": 10**9},
    {"method": "packed", "settings": {"alpha": 10**6}},
    {"method": "batch_ensemble", "settings": {"rank": 10**9}},
    {"method": "mc_dropout", "size": 10**9},
    {"method": "lora", "settings": {"rank": 10**7}},
    {"settings": {"unknown": 1}},
    {"settings": {"init": nested(400)}},
    {"method": "treenet", "settings": {"branch": "("}},
    {"method": "packed", "settings": {"widths": {"sizes": {"a": [10**12]}, "attributes": [], "rounded": []}}},
    {"format": "x"},
    {"unlike": True},
]

LIES = [
    {"data_offsets": [0, 10**12]},
    {"data_offsets": [-4, 0]},
    {"shape": [2**63, 2**63]},
    {"dtype": "X9"},
]

KINDS_OF_NUMBERS = [("I32", 1), ("BOOL", 0.25), ("F8_E4M3", 0.25), ("C64", 2)]

IN_PLACE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link to nothing": link("nowhere"),
    "a link to /dev/zero": link("/dev/zero"),
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "a terabyte of nothing": sparse,
}

TRAINED: dict[str, Spoil] = {
    **{f"a record that is {name}": text(RECORD, content) for name, content in TEXTS.items()},
    **{f"a record with {str(claim)[:90]}": entries(RECORD, **claim) for claim in CLAIMS},
    **{f"weights made of {str(about)[:90]}": header(about) for about in ABOUT},
    **{f"weights with a tensor of {lie}": header(**lie) for lie in LIES},
    **{f"weights in {dtype}": kind_of_number(dtype, factor) for dtype, factor in KINDS_OF_NUMBERS},
    **{f"{what} in place of {name}": put(name, make) for what, make in IN_PLACE.items() for name in (RECORD, WEIGHTS)},
    "a record of 68 MB": lambda f, c: sparse(f / RECORD, b"{", 2**26 + 2),
    "a record whose encoding has no columns": entries(RECORD, encoding={"kind": "table", "columns": []}),
    "code of its own": _code("python:../net.py:build"),
    "code of its own as a module": _code("python:net:build"),
    "a program of Python's as its network": _code("python:os:system"),
    "timm's network for inputs that it cannot take": entries(RECORD, model="timm:vit_tiny_patch16_224"),
    "a folder of transformers that is not there": entries(RECORD, model="hf:/nowhere"),
    "a network named by a line break": entries(RECORD, model="mlp\n\x1b[2J"),
    "weights in 100,001 tensors": _many_tensors,
    "weights of a terabyte": _terabyte_of_weights,
    "weights whose header is longer than the file": lambda f, c: (f / WEIGHTS).write_bytes(struct.pack("<Q", 2**40)),
    "weights whose header is brackets": lambda f, c: with_header(f / WEIGHTS, b"[" * 10**6, b""),
    "weights that are a pickle": lambda f, c: torch.save({"weight": Trap(c)}, f / WEIGHTS),
    "weights cut off": lambda f, c: os.truncate(f / WEIGHTS, (f / WEIGHTS).stat().st_size // 2),
    "weights of NaN": lambda f, c: with_header(f / WEIGHTS, *_with_rest(f / WEIGHTS, b"\xff")),
}  # fmt: skip


def _with_rest(path: Path, letter: bytes) -> tuple[dict, bytes]:
    found, rest = header_of(path)
    return found, letter * len(rest)


# What stands in the record beside what a prediction needs: read by `landscape --ensemble` alone.
RUNS: dict[str, Spoil] = {
    "no run": without(RECORD, "run"),
    "a run that is a list": entries(RECORD, run=[]),
    "a run of data alone": entries(RECORD, run={"data": "iris"}),
}


def _run(**values) -> Spoil:
    def spoil(folder: Path, canary: Path) -> None:
        (folder / "evil.csv").write_text("a,b\n" + "1,2\n" * 9)
        known = json.loads((folder / RECORD).read_text())
        entries(RECORD, run={**known["run"], **values})(folder, canary)

    return spoil


RUNS |= {
    f"a run with {str(values)[:80]}": _run(**values)
    for values in [
        {"data": "table:/dev/zero"}, {"data": "python:os:system"}, {"data": "npz:" + "x" * 5000}, {"data": "a\0b"},
        {"data": "iris", "source": {"folder": 3}}, {"source": {"nothing": 1}},
        {"data": "table:sent/evil.csv"}, {"data": "folder:/proc"}, {"data": "digits"},
        {"source": {"image_size": 20_000}}, {"seed": "x"}, {"threads": None},
        {"source": {"tokenizer": "/proc/self"}, "data": "text:sent/evil.csv"}, {"source": nested(300)},
    ]
}  # fmt: skip


# ---------------------------------------------------------------- checkpoints of other programs


def saved(value: Callable[[Path], object], **options) -> Spoil:
    return lambda folder, canary: torch.save(value(canary), folder / "one.pt", **options)


def _first(change: Callable[[torch.Tensor], object]) -> Spoil:
    """The first weights replaced by something of the same name."""

    def spoil(folder: Path, canary: Path) -> None:
        found = torch.load(folder / "two.pt", weights_only=True)
        name = next(iter(found))
        torch.save({**found, name: change(found[name])}, folder / "one.pt")

    return spoil


def _laughs(canary: Path) -> dict:
    found: tuple = ()
    for _ in range(60):
        found = (found, found)
    return {"state_dict": {"weight": found}}


def _large_from_a_number(name: str, legacy: bool = False) -> Spoil:
    """A pickle of which `bytearray(9e9)` is all."""
    pickled = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (9 * 10**9).to_bytes(5, "little") + b"\x85R."

    def spoil(folder: Path, canary: Path) -> None:
        if legacy:
            torch.save({}, folder / name, _use_new_zipfile_serialization=False)
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(content[: content.rindex(b"\x80\x02}q\x00.")] + pickled)
            return
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("x/data.pkl", pickled)
            archive.writestr("x/version", "3\n")

    return spoil


CHECKPOINTS: dict[str, Spoil] = {
    "a checkpoint of 9 GB in 350 bytes": _large_from_a_number("one.pt"),
    "an old checkpoint of 9 GB in some bytes": _large_from_a_number("one.pt", legacy=True),
    "a checkpoint that runs code": saved(lambda canary: {"weight": Trap(canary)}),
    "an old checkpoint that runs code": saved(
        lambda canary: {"weight": Trap(canary)}, _use_new_zipfile_serialization=False
    ),
    "a checkpoint that is a whole network": saved(lambda canary: torch.nn.Linear(2, 2)),
    "a checkpoint of one list a billion times": saved(_laughs),
    "a checkpoint whose names are numbers": saved(lambda canary: {1: torch.zeros(3)}),
    "a checkpoint of one weight seen a billion times": _first(lambda t: torch.zeros(1).expand(10**6, 10**6)),
    "a checkpoint of complex numbers": _first(lambda t: t.to(torch.complex64)),
    "a sparse checkpoint": _first(lambda t: t.to_sparse()),
    "a checkpoint of nested tensors": _first(lambda t: torch.nested.as_nested_tensor(list(t))),
    "a quantized checkpoint": _first(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8)),
    "a checkpoint of NaN": _first(lambda t: t * float("nan")),
    "a checkpoint cut off": lambda f, c: os.truncate(f / "one.pt", 700),
    "a checkpoint that is an archive of arrays": lambda f, c: npz(f / "one.pt", x=npy(np.zeros(3))),
    **{f"{what} in place of a checkpoint": put("one.pt", make) for what, make in IN_PLACE.items()},
}


# ---------------------------------------------------------------- the claims court


def _verdict(**values) -> Spoil:
    """A stored verdict with some entries replaced."""
    return lambda folder, canary: entries(str(_only(folder, "verdicts/*.json").relative_to(folder)), **values)(
        folder, canary
    )


def _only(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


def _in_place_of(pattern: str, make: Callable[[Path], object]) -> Spoil:
    return lambda folder, canary: put(str(_only(folder, pattern).relative_to(folder)), make)(folder, canary)


def stored_arrays(pattern: str, **arrays) -> Spoil:
    """The one .npz that the pattern finds, with some of its arrays replaced."""

    def spoil(folder: Path, canary: Path) -> None:
        path = _only(folder, pattern)
        with np.load(path) as found:
            known = {name: found[name] for name in found.files}
        npz(path, **{name: npy(array) for name, array in {**known, **arrays}.items()})

    return spoil


def stored_record(pattern: str, **values) -> Spoil:
    """The same with some values of its record replaced."""

    def spoil(folder: Path, canary: Path) -> None:
        with np.load(_only(folder, pattern)) as found:
            known = json.loads(str(found["record"]))
        stored_arrays(pattern, record=np.array(json.dumps({**known, **values})))(folder, canary)

    return spoil


def _pickled_record(pattern: str) -> Spoil:
    return lambda folder, canary: np.savez(_only(folder, pattern), record=np.array([Trap(canary)], dtype=object))


_part, _part_record = partial(stored_arrays, "*/*.npz"), partial(stored_record, "*/*.npz")

FILES_IN_PLACE = {what: make for what, make in IN_PLACE.items() if what not in ("nothing", "a link to nothing")}

DAMAGED_PARTS: dict[str, Spoil] = {
    **{f"{what} in place of a part": _in_place_of("*/*.npz", make) for what, make in FILES_IN_PLACE.items()},
    **{f"a part whose record is {name}": _part(record=np.array(told)) for name, told in TEXTS.items()},
    "a part that runs code": _pickled_record("*/*.npz"),
    "a part that promises terabytes": _part(record=npy_header("(1000000, 100000000)")),
    "a part of numbers for text": _part(record=np.zeros(3)),
    "a part whose figures are a list": _part_record(figures=[]),
    "a part that took no number of seconds": _part_record(seconds="x"),
}  # fmt: skip

PARTS: dict[str, Spoil] = {
    "a part of another experiment": _part_record(experiment="another"),
    "a part without figures": _part_record(figures={}),
    "a part of nested figures": _part_record(figures={"parameters": nested(300)}),
    "a part of other settings": _part_record(settings={}),
}

VERDICTS: dict[str, Spoil] = {
    **{f"{what} in place of a verdict": _in_place_of("verdicts/*.json", make) for what, make in FILES_IN_PLACE.items()},
    **{
        f"a verdict that is {name}": lambda f, c, told=told: _only(f, "verdicts/*.json").write_text(told)
        for name, told in TEXTS.items()
    },
    "a verdict of rows that are texts": _verdict(rows=["x"]),
    "a verdict of numbers": _verdict(found=[1]),
    "a verdict that found a tree": _verdict(found=nested(300)),
    "a verdict that took a text": _verdict(seconds="x"),
}


# ---------------------------------------------------------------- a study


result, result_record = partial(stored_arrays, "results/*.npz"), partial(stored_record, "results/*.npz")


STUDIES: dict[str, Spoil] = {
    **{f"a study that is {name}": text("study.json", told) for name, told in TEXTS.items()},
    **{f"{what} in place of a study": put("study.json", make) for what, make in IN_PLACE.items()},
    "a study that chose by what is none": entries("study.json", choose="nothing"),
    "a study that chose by a list": entries("study.json", choose=[]),
}

RESULTS: dict[str, Spoil] = {
    **{f"{what} in place of a result": _in_place_of("results/*.npz", make) for what, make in FILES_IN_PLACE.items()},
    **{f"a result whose record is {name}": result(record=np.array(told)) for name, told in TEXTS.items()},
    "a result that runs code": _pickled_record("results/*.npz"),
    "a result that promises terabytes": result(record=npy_header("(1000000, 100000000)")),
    "a result with a record of numbers": result(record=np.zeros(3)),
    "a result without metrics": result_record(metrics=None),
    "a result with metrics of texts": result_record(metrics={"nll": "x"}),
    "a result of no classes": result_record(classes=3),
    "a result of a tree of classes": result_record(classes=nested(300)),
    "a result of 10^30 members": result_record(size=10**30),
}  # fmt: skip


# ---------------------------------------------------------------- a training that was stopped


def _checkpoint(change: Callable[[dict], object]) -> Spoil:
    def spoil(folder: Path, canary: Path) -> None:
        path = folder / "training" / "last.ckpt"
        found = torch.load(path, weights_only=True)
        change(found)
        torch.save(found, path)
        sign(path)

    return spoil


LAST = "training/last.ckpt"

STOPPED: dict[str, Spoil] = {
    **{f"{what} in place of a checkpoint": put(LAST, make) for what, make in FILES_IN_PLACE.items()},
    "a checkpoint that runs code": lambda f, c: torch.save({"state_dict": Trap(c)}, f / LAST),
    "a checkpoint that is text": text(LAST, "hello"),
    "a checkpoint that is a list": lambda f, c: torch.save([], f / LAST),
    "a checkpoint of one list a billion times": lambda f, c: torch.save(_laughs(c), f / LAST),
    "a checkpoint of 9 GB in 350 bytes": _large_from_a_number(LAST),
    "a checkpoint without loops": _checkpoint(lambda found: found.pop("loops")),
    "a checkpoint without weights": _checkpoint(lambda found: found["state_dict"].clear()),
    "a checkpoint of a billion epochs": _checkpoint(lambda found: found.update(epoch=10**9)),
}
