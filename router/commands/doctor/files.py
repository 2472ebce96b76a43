"""Files that the settings name: models, certificates, keys, the cluster's secret."""

from __future__ import annotations

import datetime
import json
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.addresses import is_loopback
from cluster.bootstrap.models import check_hub, check_model, hub_models
from cluster.errors import SettingsError, plain_reason
from cluster.settings import EngineKind, PoolSettings, Settings, access_of
from cluster.sources import SourceKind, source_of
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import TlsFiles
from cluster.trust.validity import read_validity, shown
from router.commands.doctor.finding import DoctorFinding, bad, ok, warn
from router.identity.keys_file import read_keys_file

SOON = datetime.timedelta(days=30)
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


# --- models -----------------------------------------------------------------------------------------------------------


def check_models(settings: Settings) -> Iterator[DoctorFinding]:
    """Check the model of each pool: there, readable and complete."""
    hubs = hub_models(settings)
    for name, pool in settings.pools.items():
        subject = f"model of {name}"
        try:
            check_model(name, pool)
            for owner, setting, source in hubs:
                if owner == name:
                    check_hub(name, setting, source)
        except SettingsError as error:
            yield bad(subject, str(error), "correct the setting, or put the files there")
            continue
        place = source_of(pool.model)
        folder = place.kind is SourceKind.FOLDER and place.path.is_dir()
        yield complete(subject, place.path, pool) if folder else ok(subject, pool.model)


def complete(subject: str, folder: Path, pool: PoolSettings) -> DoctorFinding:
    """Check that every weight file of a folder is there, readable and as long as it says."""
    if pool.engine is not EngineKind.VLLM:
        return ok(subject, str(folder))
    files = {path.name for path in folder.glob("*.safetensors")}
    for index in (folder / each for each in _INDEXES):
        if index.is_file():
            try:
                files |= set(json.loads(index.read_bytes())["weight_map"].values())
            except (OSError, ValueError, KeyError, AttributeError, TypeError):
                return bad(subject, f"{index} can't be read", "fetch it again")
    broken = [f"{name} {why}" for name in sorted(files) if (why := _wrong(folder / name))]
    if broken:
        return bad(subject, f"{folder}: {'; '.join(broken[:3])}", "fetch the model again")
    size = sum((folder / name).stat().st_size for name in files)
    return ok(subject, f"{folder}, {len(files)} weight files, {size / (1 << 30):.1f} GiB")


def _wrong(path: Path) -> str:
    """Return what is wrong with a file of weights; empty where nothing is."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            if path.suffix != ".safetensors":
                return "" if size else "is empty"
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > min(size, 100 << 20):
                return "is cut off, or no file of safetensors"
            tensors: Mapping[str, Any] = json.loads(file.read(length))
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError) as error:
        return f"can't be read: {plain_reason(error)}"
    end = max((int(each["data_offsets"][1]) for name, each in tensors.items() if name != "__metadata__"), default=0)
    return "" if size >= 8 + length + end else f"is cut off: it has {size} of {8 + length + end} bytes"


# --- certificates -----------------------------------------------------------------------------------------------------


def check_certificates(settings: Settings, now: datetime.datetime | None = None) -> Iterator[DoctorFinding]:
    """Check the certificates of routers and links: they fit their keys, hold now and for a while, and have names."""
    now = now or datetime.datetime.now(datetime.UTC)
    if settings.router.tls is not None:
        tls = settings.router.tls
        try:
            TlsFiles.of_router(tls)
            yield _certificate("router.tls", tls.certificate_file, "", now)
        except SettingsError as error:
            yield bad("router.tls", str(error), "give a certificate with its key, both PEM")
    elif settings.auth.credentials and settings.router.host not in ("127.0.0.1", "::1", "localhost"):
        yield warn(
            "router.tls", "keys and tokens are sent in the clear to other machines", "give router.tls a certificate"
        )
    if settings.replica.tls is not None:
        link = settings.replica.tls
        try:
            TlsFiles.of_link(link)
            yield _certificate("replica.tls", link.certificate_file, link.server_name, now)
        except SettingsError as error:
            yield bad("replica.tls", str(error), "give a certificate with its key and its authority, all PEM")


def _certificate(subject: str, path: Path, server_name: str, now: datetime.datetime) -> DoctorFinding:
    found = read_validity(path)
    if found is None:
        return warn(subject, f"the dates of {path} can't be read")
    names, ends = found.names, found.ends
    text = f"{path} is for {', '.join(names) or 'no name'}, until {shown(ends)}"
    if now < found.begins:
        return bad(subject, f"{text}, but only from {shown(found.begins)} on", "correct the clock, or the certificate")
    if now >= ends:
        return bad(subject, f"{text}, which is over", "renew it; routers and replicas read it again by themselves")
    if server_name and server_name not in names:
        return bad(subject, f"{text}, but replica.tls.server_name is {server_name}", "make one with this name")
    if not names:
        return bad(subject, text, "clients look at subjectAltName only: make one with the names that they call")
    if ends - now < SOON:
        return warn(subject, f"{text}, in {(ends - now).days} days", "renew it soon")
    return ok(subject, text)


# --- keys and secret --------------------------------------------------------------------------------------------------


def check_keys(settings: Settings) -> Iterator[DoctorFinding]:
    """Check who may call: those without keys, and those of the keys file, which must be readable for its owner only and
    have somebody who may operate the cluster.
    """
    path = settings.auth.keys_file
    try:
        access = access_of(settings)
    except SettingsError as error:
        yield bad("keys", str(error), "penstock keys new --file keys.toml --tenant ops --role admin")
        return
    if access.anonymous:
        here = is_loopback(settings.router.host)
        who = "everybody on this machine" if here else "everybody"
        yield (ok if here else warn)("keys", f"{who} may call without a key, with role {access.role}")
    elif path is None:
        yield ok("keys", f"no keys file; tokens of {', '.join(settings.auth.jwt)} are let in")
    if path is None:
        return
    try:
        found = read_keys_file(path.expanduser())
    except SettingsError as error:
        yield bad("keys", str(error), f"`penstock keys check --file {path}` names each wrong entry")
        return
    mode = path.expanduser().stat().st_mode
    if mode & stat.S_IWOTH:
        yield bad("keys", f"everybody may write {path}, and so make keys", f"chmod 600 {path}")
    elif mode & _OTHERS:
        yield warn("keys", f"other users may read {path}; it has no keys, but who may do what", f"chmod 600 {path}")
    now = datetime.datetime.now(datetime.UTC)
    good = [each for each in found.entries() if each.expires is None or each.expires > now]
    roles = Counter(each.role for each in good)
    text = ", ".join(f"{count} {role}" for role, count in sorted(roles.items())) or "nobody"
    over = len(list(found.entries())) - len(good)
    text = f"{path}: {text}{f'; {over} have expired' if over else ''}"
    if not good:
        yield bad("roles", f"{text}: nobody may call", f"penstock keys new --file {path} --tenant NAME")
    elif not roles["admin"] and not roles["operator"]:
        remedy = f"penstock keys new --file {path} --tenant ops --role operator"
        yield warn("roles", f"{text}: nobody may see the status of the cluster", remedy)
    else:
        yield ok("roles", text)


def check_secret(settings: Settings) -> DoctorFinding:
    """Check the cluster's secret. `penstock up` makes one where there is none."""
    path = settings.cluster.secret_file or settings.cluster.folder / "secret"
    path = path.expanduser()
    if not path.exists() and settings.cluster.secret_file is None:
        return ok("secret", f"{path} is made at the start")
    try:
        ClusterSecret.from_file(path)
    except SettingsError as error:
        return bad("secret", str(error), "write at least 32 random bytes into it, the same on all machines")
    if path.stat().st_mode & _OTHERS:
        return warn("secret", f"other users may read {path}, and so pretend to be a replica", f"chmod 600 {path}")
    return ok("secret", str(path))
