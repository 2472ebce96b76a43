"""The cost of a router's connections, and the effect of a storm of TLS handshakes on open streams."""
