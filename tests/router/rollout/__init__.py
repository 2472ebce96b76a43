"""Roll-outs."""
