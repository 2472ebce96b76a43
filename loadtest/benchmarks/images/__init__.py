"""What an image costs before the first token, beside the HTTP server of vLLM."""
