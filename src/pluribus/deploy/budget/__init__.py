"""What networks and ensembles cost, counted, and which of them fit a budget."""
