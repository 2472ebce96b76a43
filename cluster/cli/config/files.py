"""Files that settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from cluster.bootstrap.models import check_model
from cluster.errors import SettingsError
from cluster.settings import Settings
from cluster.trust.file_watch import read_bytes
from cluster.trust.tls import TlsFiles, check_link


def missing_files(settings: Settings) -> list[str]:
    """Return a sentence for each model, certificate, and file of keys or issuers that is missing, does not fit or
    has a time that is not now.
    """
    problems = []
    for check in _checks(settings):
        try:
            check()
        except SettingsError as error:
            problems.append(str(error))
    return problems


def _checks(settings: Settings) -> Iterator[Callable[[], object]]:
    for name, pool in settings.pools.items():
        yield partial(check_model, name, pool)
    if settings.auth.keys_file is not None:
        yield partial(read_bytes, settings.auth.keys_file, "auth.keys_file")
    for name, issuer in settings.auth.jwt.items():
        for field in ("jwks_file", "ca_file", "token_file"):
            if (path := getattr(issuer, field)) is not None:
                yield partial(read_bytes, path, f"auth.jwt.{name}.{field}")
    router, link = settings.router.tls, settings.replica.tls
    if router is not None:
        yield lambda: TlsFiles.of_router(router).require_valid()
    if link is not None:
        # In a Ray cluster that is there already, replicas may have other files.
        if settings.cluster.ray_address:
            yield lambda: TlsFiles.of_link(link).require_valid()
        else:
            yield partial(check_link, link)
