"""Proofs between processes: the cluster secret, links, announcements, resume tokens, and TLS."""
