"""The metrics, under their public path: see `pluribus.uncertainty.metrics`."""

from .uncertainty.metrics import *  # noqa: F403
