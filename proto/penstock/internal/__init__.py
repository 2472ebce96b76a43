"""What Penstock's own processes say to each other. Not for callers: it changes with any release."""
