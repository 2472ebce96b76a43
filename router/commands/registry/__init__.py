"""`penstock get`, `apply`, `delete` and `history`: what changes while a cluster runs."""
