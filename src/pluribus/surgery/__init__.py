"""A model in, a changed copy out; it knows no `Ensemble`."""
