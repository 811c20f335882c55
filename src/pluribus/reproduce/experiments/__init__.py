"""What the items run: one file for each experiment, computed part by part and stored."""
