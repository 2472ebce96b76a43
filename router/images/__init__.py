"""Images in prompts: what engines make of them, and where it goes."""
