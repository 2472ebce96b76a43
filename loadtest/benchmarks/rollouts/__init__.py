"""Many roll-outs of simulated engines under load."""
