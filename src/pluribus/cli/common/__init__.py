"""What commands have in common: options, messages and what is shown on the screen."""
