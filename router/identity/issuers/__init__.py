"""Tokens of issuers (JSON Web Tokens): keys, signatures, and what claims mean here."""


def jwks_setting(issuer: str) -> str:
    """Return the setting that names an issuer's file of keys, as errors, logs and metrics have it."""
    return f"auth.jwt.{issuer}.jwks_file"
