"""What an engine does, on paper: memory, step times, and how far that is off measured points."""
