"""Run every line of docs/torch-uncertainty.md, theirs and ours: python docs/migration.py.

It needs torch-uncertainty 0.13 beside Pluribus, in an environment of its own, because torchvision has to fit torch:

    python -m venv compare && . compare/bin/activate
    pip install torch torchvision && pip install '.[all]' torch-uncertainty==0.13.0
"""

import importlib.metadata
import re
from pathlib import Path

PAGE = Path(__file__).with_name("torch-uncertainty.md")
BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```$")


def main() -> None:
    """Run the blocks one after the other, in one namespace; an assertion that fails ends it."""
    try:
        version = importlib.metadata.version("torch-uncertainty")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("torch-uncertainty 0.13 is not installed; the top of this file says how to.") from None
    if not version.startswith("0.13."):
        raise SystemExit(f"The page describes torch-uncertainty 0.13, but {version} is installed.")
    text, names = PAGE.read_text(), {"__name__": "page"}
    for block in BLOCK.finditer(text):
        # Empty lines before the code make a traceback point into the page.
        exec(compile("\n" * text.count("\n", 0, block.start(1)) + block[1], str(PAGE), "exec"), names)
    print(f"All {len(BLOCK.findall(text))} blocks ran against torch-uncertainty {version}.")


if __name__ == "__main__":
    main()
