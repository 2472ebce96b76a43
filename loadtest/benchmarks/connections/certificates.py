"""A certificate for a router on this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

KeyKind = Literal["ecdsa", "rsa"]
_NAME = "localhost"
_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate that signs itself, and its key."""

    certificate: Path
    key: Path

    @classmethod
    def write(cls, folder: Path, kind: KeyKind) -> CertificateFiles:
        """Make both for this machine, with a key of P-256 or of 2048 bits."""
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
            ec.generate_private_key(ec.SECP256R1()) if kind == "ecdsa" else rsa.generate_private_key(65537, _RSA_BITS)
        )
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
        now = datetime.now(UTC)
        names = [x509.DNSName(_NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(key, hashes.SHA256())
        )
        files = cls(folder / "router.crt", folder / "router.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files
