"""Run the code of pages that draw their own pictures, and keep what they draw: python docs/pictures.py [PAGE...]."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = ["first-ensemble", "calibration", "methods", "why-ensembles-work", "uncertainty"]
BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```$")


def main(pages: list[str]) -> None:
    """Draw the pictures of each page into docs/images."""
    for page in pages:
        code = "\n".join(BLOCK.findall((DOCS / f"{page}.md").read_text()))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            exec(compile(code, f"{page}.md", "exec"), {"__name__": page})
            for picture in Path(folder).glob(f"{page}*.png"):
                shutil.copy(picture, DOCS / "images")
                print(f"docs/images/{picture.name}")
            os.chdir(DOCS)


if __name__ == "__main__":
    main(sys.argv[1:] or PAGES)
