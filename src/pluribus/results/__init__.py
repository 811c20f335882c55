"""Stored results of runs: their files, the quantities in them with their intervals, and a verdict in words."""

from .store import Damaged, Group, Result, group_runs, read, read_all, write

__all__ = ["Damaged", "Group", "Result", "group_runs", "read", "read_all", "write"]
