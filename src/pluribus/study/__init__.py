"""Studies: methods x settings x data x seeds, each run trained and judged alone, and stored in one folder."""

from .folder import Outcome, conduct
from .grid import Study

__all__ = ["Outcome", "Study", "conduct"]
