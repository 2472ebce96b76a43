"""OpenAI's Responses API. A stored response outlives its connection, and its router."""
