"""What happens after training: saving, freezing, exporting, and what it costs."""
