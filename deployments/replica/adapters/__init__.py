"""LoRA adapters of the registry on a replica."""
