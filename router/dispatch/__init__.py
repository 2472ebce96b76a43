"""A pool as a router serves it: its queue, its membership there, and the choices that wait or run."""
