"""What a study remembers of its files: a mark of what is in them, whenever they were written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.catalogue import locate
from ..data.image_folders import is_image, walk_once

ALWAYS_READ = 2**31  # bytes of one data set


def fingerprints(
    data: Sequence[str], source: Mapping[str, Any], model: str | None, weights: str = ""
) -> dict[str, str]:
    """A mark of each file or folder that a study reads: another content, another mark."""
    specs = [*data, *(spec for key in ("outside", "shifted", "variants") for spec in source.get(key, ()))]
    paths = [path for spec in specs for path in locate(spec, source.get("folder"))]
    images = {path for spec in specs if spec.startswith("folder:") for path in locate(spec, source.get("folder"))}
    if model and model.startswith("python:"):
        paths += [path for path in [Path(model.split(":")[1])] if path.is_file()]
    if model and model.startswith("hf:"):
        paths += [path for path in [Path(model[3:]).expanduser()] if path.is_dir()]
    paths += [path for path in [Path(weights)] if weights and path.is_file()]
    return {str(path): _mark(path, path in images) for path in paths}


def _mark(path: Path, images: bool) -> str:
    """Of names, sizes and contents; of no times, so that a file that is touched but equal keeps its mark.

    Of data that takes minutes to read, the times of the last changes stand for the contents.
    """
    files = [(file, file.stat()) for file in _files(path, images) if file.is_file()]
    large = sum(status.st_size for _, status in files) > ALWAYS_READ
    digest = hashlib.sha256()
    for file, status in files:
        digest.update(b"%s %d 0\n" % (os.fsencode(file.relative_to(path)), status.st_size))
        digest.update(b"%d" % status.st_mtime_ns if large else _digest(file))
    return digest.hexdigest()[:16]


def _files(path: Path, images: bool) -> list[Path]:
    """What a reader of data could read: one file, or those of a folder, links included; of a folder of images these."""
    if path.is_file():
        return [path]
    found = ((at, name) for at, _, names in walk_once(path, []) for name in names)
    return [Path(at) / name for at, name in found if is_image(name) or not images]


def _digest(file: Path) -> bytes:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
