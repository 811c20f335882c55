"""The claims court: every table and figure of the papers, run and judged by its claim."""
