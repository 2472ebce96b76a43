"""Files in the OpenAI batch format: requests in, results out."""
