"""Locust's side: users, events, flags, its web page and its files."""
