"""The questions of Fort et al. asked about one's own networks: material in, a page of answers out."""
