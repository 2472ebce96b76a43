"""A cluster on a virtual clock: the production queue and scaling policies over the simulated engine's scheduler."""
