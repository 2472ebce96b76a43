"""The gRPC front: admission, dispatch, client streams, and the Python client."""
