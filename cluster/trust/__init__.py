"""Who proves what to whom: the cluster secret, links, announcements, resume tokens, and TLS."""
