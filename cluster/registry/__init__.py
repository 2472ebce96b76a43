"""The registry: what changes while a cluster runs, such as tenants, keys, adapters and aliases."""
