"""What the chart makes of values that nobody has in mind: odd texts, names of all lengths, and nothing at all."""
