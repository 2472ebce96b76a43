"""The cells of a pool as one router serves them."""
