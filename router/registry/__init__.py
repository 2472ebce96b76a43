"""The registry as routers serve it: tenants, keys, adapters and aliases that come and go while the cluster runs."""
