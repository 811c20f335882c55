"""Units of a network that can be permuted without changing its function, and two networks in one order."""
