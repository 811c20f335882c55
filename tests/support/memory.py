"""How much memory a program that a test starts has taken, and may take.

What torch alone takes differs between its builds by gigabytes: limits are beyond that.
"""

import resource
import sys
from pathlib import Path


def data_memory() -> int:
    """The bytes of this program that `RLIMIT_DATA` counts."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData")) * 1024


def limit_data_memory(size: int) -> None:
    """Let this program have no more bytes of data than so many."""
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def peak_memory() -> float:
    """The largest resident memory of this program so far, in MiB.

    On Linux `ru_maxrss` outlives exec: a program begins with the peak of whoever started it.
    """
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def forget_peak() -> None:
    """Begin the peak anew, where the system lets a program do so: what came before is not counted."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
