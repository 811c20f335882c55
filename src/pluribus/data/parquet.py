"""Parquet files, decoded some rows at a time: the size that they state is checked, what they give is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from .._common.optional import require
from .source import check_columns
from .unpacking import TooLargeError

ROWS = 2**12  # that are decoded at once


def read_parquet(file: BinaryIO, path: Path, allowed: int) -> Any:
    """The Arrow table in an open file, if it takes at most so many bytes in memory."""
    arrow = require("pyarrow", "reading Parquet files", "data")
    parquet = require("pyarrow.parquet", "reading Parquet files", "data").ParquetFile(file)
    metadata, batches, size = parquet.metadata, [], 0
    check_columns(path, metadata.num_columns)
    groups = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if max(sum(groups), 4 * metadata.num_rows * metadata.num_columns) > allowed:
        raise TooLargeError(path, allowed)
    for batch in parquet.iter_batches(ROWS, use_threads=False):
        batches.append(batch)
        size += batch.nbytes
        if size > allowed:
            raise TooLargeError(path, allowed)
    return arrow.Table.from_batches(batches, parquet.schema_arrow)
