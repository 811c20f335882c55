"""The figures, under their public path: see `pluribus.report.figures`."""

from . import methods as methods  # each states its colour
from .report.figures import *  # noqa: F403
