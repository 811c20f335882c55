"""What importing costs: process time of fresh processes, in turn, relative to `import torch`; medians.

python benchmarks/imports.py
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

ROUNDS = 7
STATEMENTS = {
    "import torch": "import torch",
    "import pluribus": "import pluribus",
    "import torch, pluribus": "import torch, pluribus",
    "from pluribus import packed": "from pluribus import packed",  # the first use of a method
    "every public name": "import pluribus; [getattr(pluribus, name) for name in pluribus.__all__]",
}


def process_time(statement: str) -> float:
    """The seconds that a new process takes for a statement, on all its threads."""
    code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(ROUNDS):
        for name, statement in STATEMENTS.items():
            times[name].append(process_time(statement))
    base = median(times["import torch"])
    for name, found in times.items():
        print(f"{name:28} {median(found):6.3f} s  {median(found) / base:5.3f}")


if __name__ == "__main__":
    main()
