"""Parts of a cluster that a simulation has only where it is asked for them."""
