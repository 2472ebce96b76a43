"""What clients saw: counts, histograms, bounds, sweeps, the report."""
