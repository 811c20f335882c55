"""Whole studies of the laboratory: quality against size, and what randomness does."""
