"""The one idea: an ensemble is one module, plus the state that each member has of its own, run once per member."""
