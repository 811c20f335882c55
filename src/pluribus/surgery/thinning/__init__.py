"""Any model with its hidden widths multiplied by a factor."""
