"""Run as a program: the Parquet file at the standard input, decoded batch by batch to the standard output.

It has so much memory and so many seconds, and no more; it imports nothing of Pluribus.
"""

import math
import os
import sys
import time

ROOM = 2**29  # bytes for pyarrow itself, and for the rows that are decoded at once
ROWS = 2**12  # that are decoded at once
TOO_MUCH = 3  # the exit code where the limits do not suffice; any other error is 1


def stream_table(allowed: int, seconds: int) -> None:
    """Write the table as a stream of Arrow; texts that are stored once are counted as often as they occur."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    limit(ROOM + allowed, seconds + math.ceil(time.process_time()))  # imports take seconds on a busy machine

    file, size = pyarrow.parquet.ParquetFile(os.fdopen(0, "rb")), 0
    with pyarrow.ipc.new_stream(os.fdopen(1, "wb"), file.schema_arrow) as stream:
        for batch in file.iter_batches(ROWS, use_threads=False):
            for column in (one for one in batch.columns if pyarrow.types.is_dictionary(one.type)):
                lengths = pyarrow.compute.binary_length(column.dictionary.cast("string"))
                size += pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0
            if size > allowed:
                raise MemoryError
            stream.write_batch(batch)


def limit(memory: int, seconds: int) -> None:
    """Let the process have no more than this, where the system can see to it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    for kind, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, hard))


if __name__ == "__main__":
    sys.path[:] = sys.argv[3:]
    try:
        stream_table(int(sys.argv[1]), int(sys.argv[2]))
    except MemoryError:
        os._exit(TOO_MUCH)
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
