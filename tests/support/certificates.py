"""Certificates for tests, made in milliseconds."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Write both as a careful administrator does, each in one step; returns the paths."""
        paths = []
        for suffix, content in (("key", self.key), ("crt", self.certificate)):
            path = folder / f"{name}.{suffix}"
            partial = folder / f"{name}.{suffix}.partial"
            partial.write_bytes(content)
            partial.replace(path)
            paths.append(str(path))
        return paths[1], paths[0]


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, self._key.public_key()).issuer_name(_name(name))
        self._certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(
            self._key, hashes.SHA256()
        )
        self.pem = _pem(self._certificate)

    def write(self, folder: Path, name: str = "ca") -> str:
        """Write the authority's certificate; returns the path."""
        path = folder / f"{name}.crt"
        path.write_bytes(self.pem)
        return str(path)

    def issue(self, common_name: str, *names: x509.GeneralName, days: int = 0) -> Pair:
        """Sign a certificate with these alternative names. It is valid for a day that begins in `days` days."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(common_name, key.public_key(), timedelta(days=days)).issuer_name(self._certificate.subject)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(_pem(certificate), private)


def uri(text: str) -> x509.GeneralName:
    """Build an alternative name."""
    return x509.UniformResourceIdentifier(text)


def dns(text: str) -> x509.GeneralName:
    """Build an alternative name."""
    return x509.DNSName(text)


def _builder(common_name: str, key: Any, later: timedelta = timedelta()) -> x509.CertificateBuilder:
    now = datetime.now(UTC) + later
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
