"""Rules of OpenAI's and Anthropic's HTTP APIs, for any server."""
