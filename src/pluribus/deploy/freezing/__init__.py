"""An ensemble for inference only: the same outputs, optimised for speed."""
