"""Compilers of constrained output: llguidance and xgrammar, as vLLM uses them."""
