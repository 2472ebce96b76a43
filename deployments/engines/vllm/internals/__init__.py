"""vLLM's internals: what we use of them, the check at start, and the comparison with another release."""
