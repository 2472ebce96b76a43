"""The public gRPC services: thin methods over admission and dispatch."""
