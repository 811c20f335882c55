"""Files of our own carry a digest of their contents, tensors included; one that has changed since is refused.

JSON has it as an entry. Safetensors files (in their header), checkpoints of torch and .npz files (in the comment of the
zip archive) have a slot for it, `"pluribus_digest": "..."`, that counts as zeros when the digest is computed. It finds
damage, not forgery: whoever changes a file on purpose can compute it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .atomic import atomic_write
from .optional import require
from .untrusted import LONGEST_JSON, check_shape, open_file, read_json

KEY, MARK, EMPTY = "digest", "pluribus_digest", "0" * 64

SLOT = re.compile(rb'"pluribus_digest": ?"([0-9a-f]{64})"')

HEAD, TAIL = 2**20, 2**10  # bytes among which a slot is looked for

DIGESTS, OTHERS = "digests.json", (".json", ".txt", ".model", ".jinja")

LANES = 4093  # words that are summed apart: a prime, so that blocks that changed places are noticed

MOST_TENSORS = 100_000  # of one file

BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began its files until 2020

CHANGED = "it has changed since it was written: its contents do not match its digest"


# ---------------------------------------------------------------- JSON


def write_signed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file with a digest of what it says; it is complete or not there."""
    plain = json.loads(json.dumps(value))
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({KEY: _json_digest(plain), **plain}, indent=1))


def read_signed_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that `write_signed_json` wrote, or an earlier version, which a note says."""
    check_shape(value := read_json(path), {})
    if KEY not in value:
        _say_unsigned(path)
    elif value.pop(KEY) != _json_digest(value):
        raise ValueError(f'{CHANGED}. If you changed it on purpose, delete its entry "{KEY}"')
    return dict(value)


def _json_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sign_folder(folder: Path) -> None:
    """Write down the digests of files that other libraries wrote to a folder."""
    found = [path for path in sorted(folder.iterdir()) if path.suffix in OTHERS and path.name != DIGESTS]
    write_signed_json(folder / DIGESTS, {"files": {path.name: _file_digest(path) for path in found}})


def check_folder_digests(folder: Path) -> None:
    """Refuse a folder in which a file has changed since `sign_folder`."""
    if not (folder / DIGESTS).exists():
        return _say_unsigned(folder)
    value = read_signed_json(folder / DIGESTS)
    check_shape(value, {"files": {str: str}}, DIGESTS)
    for name, digest in value["files"].items():
        path = folder / Path(name).name
        if not path.is_file() or _file_digest(path) != digest:
            raise ValueError(f"{path.name}: {CHANGED}. If you changed it on purpose, delete {DIGESTS}")


def _file_digest(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.sha256(file.read(LONGEST_JSON)).hexdigest()


# ---------------------------------------------------------------- tensors


def write_safetensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write tensors with a digest of them and of the metadata; the file is complete or not there."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        try:
            require("safetensors.torch", "saving", "save").save_file(plain, temporary, {MARK: EMPTY, **metadata})
            _sort_metadata(temporary)
            sign(temporary)
        except require("safetensors", "saving", "save").SafetensorError as error:
            raise OSError(f"save: {str(path)!r} could not be written ({error}).") from error


def _sort_metadata(path: Path) -> None:
    """Safetensors writes the entries of its metadata in random order; equal tensors must give equal bytes."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        file.seek(8)
        file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length))


def read_safetensors(path: str | os.PathLike[str], entry: str = "") -> tuple[str, dict[str, Any]]:
    """The text of one entry of a safetensors file's header, "" where there is none, and the tensors by name.

    The tensors are the file's own bytes, not copies of them; whoever has found them to fit calls `check_digest`.
    """
    safetensors = require("safetensors", "reading weights", "save")
    try:
        open_file(path).close()  # a pipe would be waited for
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            if len(file.keys()) > MOST_TENSORS:
                raise ValueError(f"it holds {len(file.keys())} tensors, but at most {MOST_TENSORS} are allowed")
            header = (file.metadata() or {}).get(entry, "")
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"it is not a complete safetensors file ({error})") from error


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file without times, so that equal arrays give equal bytes; it is complete or not there."""
    with atomic_write(path) as temporary:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy")
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, np.asarray(array), allow_pickle=False)
        sign(temporary)


def read_checkpoint_file(path: Path) -> Any:
    """What `torch.save` wrote to a file, read without running anything in it; `check_digest` is left to the caller.

    torch packs nothing, so that a file cannot hold more than its own bytes; of what a pickle may call, `bytearray`
    alone makes something large of a number.
    """
    torch = require("torch", "reading checkpoints", "train")
    with open_file(path) as file:
        start = file.read(LONGEST_JSON)
        if start.startswith(b"PK\x03\x04"):
            archive = zipfile.ZipFile(file)
            if sum(member.file_size for member in archive.infolist()) > os.fstat(file.fileno()).st_size:
                raise ValueError("it holds more than its own bytes, which no file of torch.save does")
            start = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".pkl"))
        elif not start.startswith(BEFORE_ZIP):
            raise ValueError("it is not a file of torch.save")
        if b"bytearray" in start:
            raise ValueError("it asks for a bytearray, which no weights need")
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch thinks of kinds of tensors that are refused later
            return torch.load(file, map_location="cpu", weights_only=True)


# ---------------------------------------------------------------- slots


def sign(path: Path) -> None:
    """Fill the slot of a file; a zip archive gets one as its comment."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = f'"{MARK}": "{EMPTY}"'.encode()
    content = np.memmap(path, np.uint8, "r+")
    slot = _slot(content)
    assert slot is not None, "a file that is signed has a slot"
    content[slot] = np.frombuffer(_digest(content).encode(), np.uint8)
    content.flush()


def check_digest(path: str | os.PathLike[str], *, note: bool = False) -> None:
    """Refuse a file whose digest is not that of its contents, of which it takes the time of a copy to read all.

    Args:
        note: say that it has none where that is so
    """
    content = np.memmap(path, np.uint8, "c")
    slot = _slot(content)
    if slot is None:
        return _say_unsigned(path) if note else None
    stored = content[slot].tobytes().decode()
    content[slot] = ord("0")  # in memory alone
    if stored != _digest(content):
        raise ValueError(CHANGED)


def _slot(content: np.ndarray) -> slice | None:
    start = max(len(content) - TAIL, 0) if content[:2].tobytes() == b"PK" else 0
    some = content[start : start + HEAD].tobytes()
    found = SLOT.search(some)
    if not found and MARK.encode() in some:
        raise ValueError(CHANGED)
    return slice(start + found.start(1), start + found.end(1)) if found else None


def _digest(content: np.ndarray) -> str:
    """SHA-256 of sums of words, which take as long as memory does: SHA-256 of all would double the time of loading.

    A bit that changes changes a sum, and the sums are of words that lie a prime number of words apart.
    """
    whole = len(content) // (8 * LANES) * 8 * LANES
    sums = np.add.reduce(content[:whole].view("<i8").reshape(-1, LANES), axis=0)
    return hashlib.sha256(sums.tobytes() + content[whole:].tobytes() + str(len(content)).encode()).hexdigest()


def _say_unsigned(path: str | os.PathLike[str]) -> None:
    warnings.warn(
        f"{os.fspath(path)}: it was written by an earlier version, without a digest: damage to it cannot be noticed. "
        "Save it again to add one.",
        stacklevel=1,  # a place of ours, in whatever thread: the command line shows it as a line of its own, once
    )
