"""Conversions of values that only routers and replicas exchange; those of the public API are in `penstock.wire`."""
