"""Which units of a network may change places without a change of its function, and two networks brought into one order."""
