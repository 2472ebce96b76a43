"""`penstock decisions`."""
