from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.redis.connections import ConnectionSource
from cluster.trust.verifying import trusting
from tests.support.certificates import Authority

STRICT = """
import ssl
made = ssl.create_default_context
def strict(*args, **options):
    context = made(*args, **options)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context
ssl.create_default_context = strict
"""
"""Python 3.13's default, for older Pythons."""
FLAGS = """
from cluster.redis.connections import ConnectionSource
from cluster.trust.verifying import trusting
contexts = [trusting()]
for url in {urls}:
    source = ConnectionSource(url, 1.0, "key")
    contexts.append(source.make().ssl_context.get())
    if source._sentinel is not None:
        contexts += [each.connection_pool.make_connection().ssl_context.get() for each in source._sentinel.sentinels]
assert not any(each.verify_flags & ssl.VERIFY_X509_STRICT for each in contexts), contexts
assert all(each.verify_mode is ssl.CERT_REQUIRED and each.check_hostname for each in contexts)
assert len(contexts) == {many}
"""
URLS = ("rediss://a.example:1/0", "rediss+sentinel://a.example,b.example/main", "rediss+cluster://a.example")


def test_certificates_without_the_key_of_their_authority_are_taken() -> None:
    """Python 3.13 refuses them by default."""
    code = STRICT + FLAGS.format(urls=URLS, many=len(URLS) + 3)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("url", ["redis://a.example", "redis+sentinel://a.example/main", "redis+cluster://a.example"])
def test_connections_without_tls_have_no_option_of_it(url: str) -> None:
    assert not hasattr(ConnectionSource(url, 1.0, "key").make(), "ssl_context")


def test_the_authority_of_a_file_is_the_only_one(tmp_path: Path) -> None:
    authority = Authority()
    (known,) = trusting(authority.write(tmp_path)).get_ca_certs(binary_form=True)
    assert ssl.PEM_cert_to_DER_cert(authority.pem.decode()) == known


def test_a_file_without_a_certificate_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(OSError, match="NO_CERTIFICATE_OR_CRL_FOUND"):
        trusting(tmp_path / "ca.crt")
