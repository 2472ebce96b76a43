"""Images for vLLM's models: what stands for them in a prompt, and what vLLM's processors make of them."""
