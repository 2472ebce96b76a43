"""The HTTP API. It translates OpenAI's requests to those of the gRPC API, and answers back."""
