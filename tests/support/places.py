"""Where the repository is, and the real data beside it that some tests use where they are at hand."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
SHARED = ROOT.parent / "shared" / "data"
