"""The figures, under their public path: see `pluribus.report.figures`."""

from .report.figures import *  # noqa: F403
