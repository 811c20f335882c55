"""The checks: what an experiment gave in, a verdict out. Each can come out each way."""
