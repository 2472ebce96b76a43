"""The machine: ports, memory, files, disks, processors and GPUs."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.bootstrap.ahead import HTTP_PORT, LEAST_FREE, port_taken
from cluster.bootstrap.state_dir import holder, is_held
from cluster.settings import EngineKind, Settings
from router.commands.doctor.finding import DoctorFinding, bad, ok, warn

OPEN_FILES = 65_536
"""Open files that Ray asks for; each connection and stream takes one."""
LEAST_OPEN_FILES = 1_024
SHARED_BYTES = 1 << 30
"""Shared memory that an engine's ranks and Ray's object store are at ease with."""
LEAST_SHARED_BYTES = 256 << 20
ROOMY_DISK = 10 << 30
_GPU_FIELDS = ("index", "name", "driver_version", "memory.total", "memory.used", "uuid")
_TIMEOUT_S = 15.0
_CPU_FLAGS = ("avx512f", "avx2", "asimd")
"""Features of which vLLM needs one on a CPU, the fastest first."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as the driver reports it. Memory is in MiB."""

    index: int
    name: str
    driver: str
    memory: int
    used: int
    uuid: str = ""


# --- ports ------------------------------------------------------------------------------------------------------------


def check_ports(settings: Settings) -> Iterator[DoctorFinding]:
    """Check that routers can listen, and name who has a port."""
    router = settings.router
    ports = {
        "router.port": router.port,
        "router.http.port": HTTP_PORT if router.http.port is None else router.http.port,
    }
    running = is_held(settings.cluster.folder) if settings.cluster.folder.is_dir() else False
    for name, port in ports.items():
        if not port:
            yield ok(name, "any free one")
        elif not port_taken(router.host, port):
            yield ok(name, f"{port} is free")
        elif running:
            yield ok(name, f"{port} is used; the cluster of {settings.cluster.folder} runs (pid "
                     f"{holder(settings.cluster.folder)})")  # fmt: skip
        elif name == "router.http.port" and router.http.port is None:
            yield ok(name, f"{port} is used by {_who(port)}, so any free one is taken")
        else:
            flag = "--port" if name == "router.port" else "--http-port"
            yield bad(name, f"{port} is used by {_who(port)}", f"stop it, or choose another port with {flag}")


def _who(port: int) -> str:
    try:
        found = [
            each.pid
            for each in psutil.net_connections("tcp")
            if each.laddr and each.laddr.port == port and each.status == psutil.CONN_LISTEN and each.pid
        ]
        if found:
            process = psutil.Process(found[0])
            return f"{process.name()} (pid {process.pid}, user {process.username()})"
    except (psutil.Error, OSError):
        pass
    return "a process that this user may not see"


# --- limits and memory ------------------------------------------------------------------------------------------------


def check_limits(settings: Settings) -> Iterator[DoctorFinding]:
    """Check open files, shared memory, memory and disks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(soft, hard)
    shared = Path("/dev/shm")  # noqa: S108 - it is looked at, and nothing is written
    if shared.is_dir():
        yield shared_memory(shutil.disk_usage(shared).total, shutil.disk_usage(shared).free)
    memory = psutil.virtual_memory()
    text = f"{_size(memory.available)} of {_size(memory.total)} free"
    yield ok("memory", text) if memory.available > memory.total // 20 else warn("memory", text, "stop something")
    yield disk_space("disk of the state folder", settings.cluster.folder)


def open_files(soft: int, hard: int) -> DoctorFinding:
    """Judge the limits of open files."""
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} at most")
    may = "" if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES else ", after root has raised the hard limit"
    text, remedy = f"{soft:,} at most; each stream takes one", f"ulimit -n {OPEN_FILES}{may}"
    return bad("open files", text, remedy) if soft < LEAST_OPEN_FILES else warn("open files", text, remedy)


def shared_memory(total: int, free: int) -> DoctorFinding:
    """Judge /dev/shm."""
    text = f"{_size(free)} of {_size(total)} free in /dev/shm"
    remedy = "give the container more, such as with `docker run --shm-size 8g` or an emptyDir with medium Memory"
    if free < LEAST_SHARED_BYTES:
        return bad("shared memory", f"{text}: the ranks of an engine share it", remedy)
    return warn("shared memory", text, remedy) if free < SHARED_BYTES else ok("shared memory", text)


def disk_space(subject: str, folder: Path) -> DoctorFinding:
    """Judge the free space of a folder's disk; the folder need not exist yet."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        return bad(subject, f"this user may not write in {there}", "change its owner, or give another --state-dir")
    free = shutil.disk_usage(there).free
    text = f"{_size(free)} free at {folder}"
    if free < LEAST_FREE:
        return bad(subject, text, "free some, or give another --state-dir")
    return warn(subject, text, "Redis' file and logs grow there") if free < ROOMY_DISK // 5 else ok(subject, text)


# --- processors and GPUs ----------------------------------------------------------------------------------------------


def find_gpus() -> tuple[list[Gpu], str]:
    """Return the GPUs of this machine, and the reason why there may be more."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "" if not Path("/proc/driver/nvidia").exists() else "nvidia-smi is not installed"
    command = [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer: {error}"
    if done.returncode:
        return [], f"nvidia-smi failed: {(done.stderr or done.stdout).strip()}"
    return read_gpus(done.stdout), ""


def read_gpus(text: str) -> list[Gpu]:
    """Read what nvidia-smi printed."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(_GPU_FIELDS) and parts[0].isdigit():
            memory, used = (int(part) if part.isdigit() else 0 for part in parts[3:5])
            found.append(Gpu(int(parts[0]), parts[1], parts[2], memory, used, parts[5]))
    return found


def check_gpus(
    settings: Settings,
    gpus: Sequence[Gpu],
    trouble: str,
    environ: Mapping[str, str] = os.environ,
    *,
    cpu_build: bool = False,
) -> Iterator[DoctorFinding]:
    """Check that the GPUs suffice for all replicas; without GPUs, or with an engine that is built for CPUs, that the
    processor can run it.
    """
    vllm = [pool for pool in settings.pools.values() if pool.engine is EngineKind.VLLM]
    if vllm and cpu_build:
        # GPUs, and a driver that does not answer, make no difference to it.
        yield check_processor()
        return
    if trouble:
        yield (
            bad("GPUs", trouble, "reload the driver, or start the container with GPUs")
            if vllm
            else warn("GPUs", trouble)
        )
        return
    if not gpus:
        if vllm:
            yield check_processor()
        return
    seen = visible(gpus, environ)
    for each in gpus:
        hidden = "" if each in seen else "; hidden by CUDA_VISIBLE_DEVICES"
        text = f"{each.name}, driver {each.driver}, {each.used:,} of {each.memory:,} MiB used{hidden}"
        busy = each in seen and each.used > each.memory // 10
        yield (
            warn(f"GPU {each.index}", text, "another process has its memory; nvidia-smi names it")
            if busy
            else ok(f"GPU {each.index}", text)
        )
    needed = sum(pool.replicas * pool.ranks for pool in vllm)
    if needed > len(seen) and not settings.cluster.ray_address:
        yield bad("GPUs", f"{needed} are needed, {len(seen)} are visible", "lower replicas or tensor_parallel_size, or "
                  "change CUDA_VISIBLE_DEVICES")  # fmt: skip


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lets processes see. As for CUDA, the list ends at a wrong entry."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(gpus)
    found: list[Gpu] = []
    for word in filter(None, (part.strip() for part in listed.split(","))):
        match = next((each for each in gpus if word == str(each.index) or (word and each.uuid.startswith(word))), None)
        if match is None:
            break
        found.append(match)
    return found


def check_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> DoctorFinding:
    """Check the features that vLLM needs on a CPU."""
    cores = len(os.sched_getaffinity(0))
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return warn("processor", f"{cores} cores; its features can't be read")
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    best = next((flag for flag in _CPU_FLAGS if flag in flags), "")
    if not best:
        return bad("processor", "it has neither AVX2 nor ARM's ASIMD, without which vLLM does not run", "use another "
                   "machine, or engine = \"sim\"")  # fmt: skip
    more = ", ".join(flag for flag in ("amx_bf16", "avx512_bf16", "bf16") if flag in flags)
    return ok("processor", f"{cores} cores, {best}{', ' + more if more else ''}; engines run on it")


def check_host(settings: Settings) -> DoctorFinding:
    """Check that the address to listen on belongs to this machine."""
    host = settings.router.host
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return bad(
            "router.host", f"{host} is not known: {error}", "use 127.0.0.1, 0.0.0.0 or an address of this machine"
        )
    return ok("router.host", host)


def _size(number: int) -> str:
    return f"{number / (1 << 30):.1f} GiB" if number >= 1 << 30 else f"{number >> 20} MiB"
