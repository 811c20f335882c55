"""What people look at: the page of a study, its charts, and figures of single predictions."""

from .page import report

__all__ = ["report"]
