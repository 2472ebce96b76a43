"""The process that sends requests and follows their streams."""
