"""State of a cluster, for its operators: plain values."""
