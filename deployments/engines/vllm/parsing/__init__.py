"""Tool calls and reasoning: vLLM's parsers, and what a request with tools adds to the sampling of its sequence."""
