"""The replica. It hosts one engine, keeps its output, and serves the inner API to routers."""
