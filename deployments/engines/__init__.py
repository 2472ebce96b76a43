"""Engines behind one small protocol. `build_engine` makes the one that the settings name."""
