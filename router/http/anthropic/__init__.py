"""Anthropic's Messages API, translated to generations."""
