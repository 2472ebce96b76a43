"""What a dead router's clients do to the router that is left, all at once."""
