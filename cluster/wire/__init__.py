"""Conversion of values that only routers and replicas exchange; that of the public API is in `penstock.wire`."""
