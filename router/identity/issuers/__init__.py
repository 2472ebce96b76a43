"""Tokens of issuers (JSON Web Tokens): keys, signatures, and what claims mean here."""
