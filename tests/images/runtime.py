"""What is built, started by runc as the chart starts it: user, command, variables, mounts, a read-only root."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.images.base import MissingError
from tests.images.build import Image

_NAMESPACES = ("pid", "ipc", "uts", "mount")
"""The network is the caller's, so that pods reach each other: pods' addresses would take a plugin."""
_CLONE_NEWNET = 0x40000000


def bundle(folder: Path, image: Image, pod: Mapping[str, Any], container: Mapping[str, Any], **given: Any) -> Path:
    """Write an OCI bundle for a container of a rendered pod.

    Args:
        folder: for the bundle.
        image: what it runs.
        pod: the pod's `spec`.
        container: one of its containers.
        given: `values` of variables that come from a cluster, `files` of volumes by name, `command` instead of the
            container's own.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    security = {**pod["securityContext"], **container["securityContext"]}
    uid, gid = security["runAsUser"], security["runAsGroup"]
    own = [*container.get("command", []), *container.get("args", [])]
    values: dict[str, str] = given.get("values", {})
    variables = {**image.environment, **_variables(container.get("env", []), values)}
    config = {
        "ociVersion": "1.0.2",
        "hostname": container["name"],
        "process": {
            "terminal": False,
            "user": {"uid": uid, "gid": gid, "additionalGids": [pod["securityContext"]["fsGroup"]]},
            "args": list(given.get("command") or own or image.command),
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": image.folder,
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "ambient", "inheritable")},
        },
        "root": {"path": str(image.root.resolve()), "readonly": security["readOnlyRootFilesystem"]},
        "mounts": [*_SYSTEM, *_mounts(folder, pod, container, uid, given.get("files", {}))],
        "linux": {"namespaces": [{"type": kind} for kind in _NAMESPACES], "maskedPaths": [], "readonlyPaths": []},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@contextmanager
def own_network() -> Iterator[None]:
    """Leave the machine's network for one that has the loopback alone: its ports are all free.

    That goes for this thread, and for the programs that it starts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise MissingError(f"no network namespaces: {os.strerror(ctypes.get_errno())}")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        libc.setns(before, _CLONE_NEWNET)
        os.close(before)


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a bundle. Its output goes to `log` in the bundle's folder."""
    program = shutil.which("runc")
    if program is None:
        raise MissingError("runc is not installed: apt-get install runc")
    subprocess.run([program, "delete", "--force", name], check=False, stderr=subprocess.DEVNULL)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([program, "run", "--bundle", folder, name], stdout=log, stderr=subprocess.STDOUT)


def stop(name: str, process: subprocess.Popen[bytes], seconds: float) -> int:
    """Send SIGTERM, and SIGKILL after a time. Return the exit status."""
    subprocess.run(["runc", "kill", name, "TERM"], check=False)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        subprocess.run(["runc", "kill", name, "KILL"], check=False)
        return process.wait(seconds)


def _variables(env: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in env:
        value = given.get(each["name"], each.get("value"))
        if value is None:
            raise KeyError(f"no value for {each['name']}")
        for name, known in found.items():
            value = value.replace(f"$({name})", known)
        found[each["name"]] = value
    return found


def _mounts(
    folder: Path, pod: Mapping[str, Any], container: Mapping[str, Any], uid: int, files: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = []
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        source = folder / "volumes" / mount["name"]
        source.mkdir(parents=True, exist_ok=True)
        for name, text in files.get(mount["name"], {}).items():
            (source / name).write_text(text, encoding="utf-8")
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{uid}:{uid}", source], check=True)
        options = ["rbind", "ro" if mount.get("readOnly") else "rw", "nosuid", "nodev"]
        if "emptyDir" not in volume and not mount.get("readOnly"):
            raise ValueError(f"{mount['name']} can be written, and is not empty")
        path = source / mount["subPath"] if "subPath" in mount else source
        mounts.append({"destination": mount["mountPath"], "type": "bind", "source": str(path), "options": options})
    return mounts


_SYSTEM = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
    {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec", "newinstance"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},  # noqa: S108
    # vLLM asks for the processor's cores.
    {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro", "nosuid", "nodev", "noexec"]},
    {"destination": "/etc/resolv.conf", "type": "bind", "source": "/etc/resolv.conf", "options": ["rbind", "ro"]},
    {"destination": "/etc/hosts", "type": "bind", "source": "/etc/hosts", "options": ["rbind", "ro"]},
]
