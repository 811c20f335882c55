"""From a trained network to an ensemble that keeps its weights: tried, calibrated, judged, frozen."""
