"""Reproducing the papers: every table and figure of the papers, run and judged by its claim."""
