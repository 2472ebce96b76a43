"""From settings to a running vLLM: arguments, processes, and what is checked on the way."""
