"""Generated code of the Penstock API; see the .proto files beside it."""
