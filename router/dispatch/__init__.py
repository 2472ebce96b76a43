"""From an admitted request to its output: queue, links to replicas, and the streams in between."""
