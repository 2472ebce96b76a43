"""Other questions than how many GPUs a load needs: what a budget serves, offline work by a deadline, a shared fleet."""
