"""An ensemble for inference alone: the same outputs by the fewest operations."""
