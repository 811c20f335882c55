"""How much memory a program that a test starts has taken."""

import sys
from pathlib import Path


def peak_memory() -> float:
    """The largest resident memory of this program so far, in MiB.

    On Linux `ru_maxrss` outlives exec: a program begins with the peak of whoever started it.
    """
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    import resource

    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
