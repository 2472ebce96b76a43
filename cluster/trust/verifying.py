"""How clients verify servers."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a file in PEM; for None, those of the system.

    Python 3.13 also refuses certificates that do not name the key of their authority, as `openssl x509` and older
    clusters of Kubernetes make them. gRPC and earlier Pythons take them, and so does this context.

    Raises:
        OSError: the file cannot be read, or has no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
