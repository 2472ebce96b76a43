"""The router: the gRPC API, admission control, dispatch to replicas, and client streams."""
