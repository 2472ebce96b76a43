"""Chat messages and what is in them."""
