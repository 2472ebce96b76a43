"""OpenAI's completions: texts that continue one prompt or several."""
