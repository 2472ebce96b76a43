"""Start and stop of a whole cluster on one machine: Redis, Ray, the Serve applications, the routers."""
