"""Parquet files, decoded in a process of its own with limits: a few bytes of one can ask for any memory and time.

Values that repeat, texts that begin as the one before and nested lists take next to no room in the file, and the
decoder makes room for a whole page, or for thousands of rows, before anybody can count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from .._common.optional import require
from . import parquet_process
from .source import check_columns
from .unpacking import Bounded, TooLargeError, seconds_for


def read_parquet(file: BinaryIO, path: Path, allowed: int) -> Any:
    """The Arrow table in an open file, if it takes at most so many bytes in memory."""
    arrow = require("pyarrow", "reading Parquet files", "data")
    metadata = require("pyarrow.parquet", "reading Parquet files", "data").ParquetFile(file).metadata
    check_columns(path, metadata.num_columns)
    if metadata.num_rows * metadata.num_columns * 4 > allowed:
        raise TooLargeError(path, allowed)
    file.seek(0)
    seconds = int(min(seconds_for(os.fstat(file.fileno()).st_size), 10**6))
    command = [sys.executable, "-P", parquet_process.__file__, str(allowed), str(seconds), *sys.path]
    with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            table = arrow.ipc.open_stream(Bounded(process.stdout, path, allowed + 2**20)).read_all()
        except (arrow.ArrowInvalid, OSError):  # the process ended before its time
            table = None
        except BaseException:
            process.kill()
            raise
        said = process.communicate()[1].decode(errors="replace").strip()
    if process.returncode == 1:
        raise ValueError(said)
    if process.returncode or table is None:
        raise TooLargeError(path, allowed)
    return table
