"""Units of a network that may change places without a change of its function, and two networks in one order."""
