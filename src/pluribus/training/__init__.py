"""Training an ensemble as the method's paper does."""
