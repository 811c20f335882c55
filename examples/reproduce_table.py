"""Does a paper's table hold? Table 10 of Packed-Ensembles, counted again.

You learn: `pluribus reproduce ITEM` recomputes a table or a figure of the four papers, compares our numbers with the
printed ones and gives a verdict on the claim; `--json` is for scripts. Parameters and mult-adds are counted exactly:
nothing is trained. At `--scale smoke`, half of the rows are counted.
"""

import json
import subprocess
import sys


def main() -> None:
    command = [sys.executable, "-m", "pluribus.cli.app", "reproduce", "packed/table10", "--scale", "smoke", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    for row in [found["header"], *found["rows"]]:
        print("{:20} {:14} {:>9} {:>8}  {}".format(*row))
    print(f"\n{found['claim']}\n{found['judgement'].upper()}: {' '.join(found['found'])}")


if __name__ == "__main__":
    main()
