"""Outputs of members in, probabilities and figures out; it knows no `Ensemble`."""
