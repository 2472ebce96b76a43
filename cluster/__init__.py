"""Code that every Penstock process shares: values, settings, errors, the queue and the bootstrap of a cluster."""

__version__ = "0.2.0"

__all__ = ["__version__"]
