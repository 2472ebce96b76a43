"""Plain values of the API: what clients send and get. No value is a protobuf message."""
