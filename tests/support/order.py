"""Rows in the order of their file; `load` gives them mixed."""

from pluribus.data.dataset import Split


def filed(split: Split) -> Split:
    return split.take(split.rows.argsort())
