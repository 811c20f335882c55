"""Pictures of differences with their intervals, and of curves."""

from ..report.charts.intervals import Point as Point
from ..report.charts.intervals import curves_figure as curves_figure
from ..report.charts.intervals import intervals_figure as intervals_figure
