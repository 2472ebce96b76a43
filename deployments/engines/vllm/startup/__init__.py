"""From settings to a running vLLM: arguments, processes, and checks on the way."""
