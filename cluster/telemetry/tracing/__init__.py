"""Distributed traces: contexts that go along with requests, and spans that are made once a request is over."""
