"""Calls to models that embed or classify."""
