"""What is tried with an image that was built, and what can be said of one that was not."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from k8s.render.pins import MACHINES
from k8s.render.pins import pins as pins_in
from tests.images import runtime
from tests.images.base import MissingError
from tests.images.build import Image, context
from tests.images.dockerfile import read
from tests.k8s.charts import Object, one, render
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.ray import ATTEMPTS
from tests.k8s.kuberay.pods import AGENT, HEALTH
from tests.k8s.kuberay.pods import head as head_of
from tests.k8s.view import PodSpec, pods
from tests.wheels.build import ROOT

Say = Callable[[str], None]
_PASSWORD = "secret"
_START_S = 180.0
_ENGINE_S = 420.0
_STOP_S = 60.0
_VALUES = ("--set=secrets.generate=true", "--set=secrets.generateOffline=true", "--set=console.enabled=true")
_UV = Path(sys.executable).with_name("uv")
_BLOCKED = "no program of the image may write to its root"


class CheckError(Exception):
    """A check that failed."""


class _DidNotStartError(CheckError):
    pass


def start_router(image: Image, work: Path, say: Say) -> None:
    """Start the router's pod and the console's from the image, as the chart renders them.

    Raises:
        CheckError: one does not get ready, can write to its root, or does not end when it is told to.
    """
    objects = render("defaults", *_VALUES)
    with _redis() as url:
        router = _pod(objects, "Deployment/penstock-router")
        values = {"QUEUE_REDIS_PASSWORD": _PASSWORD, "PENSTOCK_REDIS__URL": url}
        folder = _bundle(work / "router", image, router, objects, values)
        with _running(
            "penstock-check-router", folder, say, "router: command, variables, user and mounts of the chart"
        ) as router_runs:
            ports = router.ports()
            _until_ok(f"http://127.0.0.1:{ports['metrics']}/readyz", folder, router_runs)
            say("router: /readyz answers")
            console = _pod(objects, "Deployment/penstock-console")
            page = _bundle(work / "console", image, console, objects, {})
            with _running(
                "penstock-check-console", page, say, "console: the same image, with the page"
            ) as console_runs:
                _until_ok(f"http://127.0.0.1:{console.ports()['page']}/healthz", page, console_runs)
                text = _get(f"http://127.0.0.1:{console.ports()['page']}/")
                if "<html" not in text:
                    raise CheckError(f"the console's page is {text[:200]!r}")
    _cannot_write(image, work, router, objects, values, say)


def start_replica(image: Image, work: Path, say: Say) -> None:
    """Start Ray's head as KubeRay does, and a whole cluster with an engine inside the worker's container.

    Raises:
        CheckError: something does not get ready, can write to its root, or gives no answer.
    """
    with _redis() as url:
        _start_replica(image, work, say, url)


def _start_replica(image: Image, work: Path, say: Say, url: str) -> None:
    objects = render("defaults", *_VALUES)
    values = {
        "QUEUE_REDIS_PASSWORD": _PASSWORD,
        "PENSTOCK_REDIS__URL": url,
        "PENSTOCK_REPLICA__HOST": "127.0.0.1",
        "RAY_AUTH_TOKEN": "t" * 32,
    }
    head = head_of(one(objects, "RayService"))
    for attempt in range(1, ATTEMPTS + 1):
        folder = _bundle(work / f"head-{attempt}", image, head, objects, values)
        try:
            with _running("penstock-check-head", folder, say, "Ray's head: KubeRay's command, the chart's pod") as runs:
                _until_ok(f"http://127.0.0.1:{AGENT}{HEALTH}", folder, runs, token=values["RAY_AUTH_TOKEN"])
                say("Ray's head: healthy")
        except _DidNotStartError:
            if attempt == ATTEMPTS:
                raise
            say("Ray's head: ended while it started; made anew, as the operator does")
        else:
            break
    worker = _pod(objects, "RayService/penstock/demo")
    demo = _bundle(work / "demo", image, worker, objects, values, command=["penstock", "demo"])
    say("worker's container: penstock demo, with Ray, an engine of vLLM and a router")
    done = runtime.start("penstock-check-demo", demo)
    code = done.wait(_ENGINE_S)
    text = (demo / "log").read_text("utf-8", "replace")
    if code != 0:
        raise CheckError(f"penstock demo ended with {code}: {text[-2000:]}")
    say(f"penstock demo: {' '.join(text.split())[-160:]}")
    _cannot_write(image, work, worker, objects, values, say)


def resolve_pins(name: str, machines: Sequence[str] = MACHINES, glibc: str = "2_36") -> str:
    """Look whether every pin of an image has a wheel for each of its processors. Return what was found.

    Raises:
        CheckError: one has none.
    """
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    # PyTorch's CPU build has an index of its own.
    asked = "\n".join(line for line in lines if not line.startswith("torch==")) + "\n"
    command = [_UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-deps", "--only-binary=:all:"]
    counts = []
    for machine in machines:
        options = ["--python-version=3.12", f"--python-platform={machine}-manylinux_{glibc}", "-"]
        found = _resolved([*command, *options], asked)
        counts.append(f"{len(found.splitlines())} wheels for {machine}")
    return ", ".join(counts)


def resolve_cuda(path: Path) -> str:
    """Look whether the pins of an image for NVIDIA GPUs have wheels and fit together. Return what was found.

    Raises:
        CheckError: they don't, or PyTorch's CUDA is not the base image's.
    """
    file = read(path)
    for stage in file.stages:
        for copy in stage.copies():
            for source in () if copy.stage else copy.sources:
                context(source)
    wheels = resolve_pins(path.stem, ("x86_64",), "2_39")
    (cuda,) = re.findall(r"cuda:(\d+\.\d+)\.\d+-devel", " ".join(file.arguments.values()))
    # What the extras need, held to the pins.
    command = [_UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version=3.12"]
    command += ["--python-platform=x86_64-manylinux_2_39", "--extra=gpu", "--extra=objects", "--extra=otel"]
    command += ["--constraints", ROOT / "requirements" / f"{path.stem}.txt", ROOT / "pyproject.toml"]
    pins = dict(line.split("==") for line in _resolved(command).split() if "==" in line)
    if lacking := sorted(pins.keys() - pins_in(f"{path.stem}.txt").keys()):
        raise CheckError(f"requirements/{path.stem}.txt lacks {', '.join(lacking)}: make lock")
    # PyTorch's; other packages bring libraries for several CUDAs.
    major = {found[1] for name in pins if (found := re.search(r"^nvidia-(?:cudnn|nccl)-cu(\d+)$", name))}
    if major != {cuda.partition(".")[0]}:
        raise CheckError(f"PyTorch {pins['torch']} comes with CUDA {major}, and the base image has {cuda}")
    return f"{wheels}; vllm {pins['vllm']}, torch {pins['torch']} with CUDA {', '.join(major)}; base {cuda}"


def _resolved(command: Sequence[str | Path], given: str = "") -> str:
    """Run uv as if no local folder had wheels."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("FIND_LINKS")}
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=clean)
    if done.returncode != 0:
        raise CheckError(done.stderr[-2000:])
    return done.stdout


def _pod(objects: list[Object], owner: str) -> PodSpec:
    (found,) = [each for each in pods(objects) if each.owner == owner]
    return found


def _bundle(
    folder: Path,
    image: Image,
    pod: PodSpec,
    objects: list[Object],
    values: dict[str, str],
    command: list[str] | None = None,
) -> Path:
    place = folder.with_name(f"{folder.name}-kubelet")
    place.mkdir(exist_ok=True)
    kubelet = Kubelet(objects, {}, place, 1.0)
    files = {volume["name"]: kubelet._content(volume) for volume in pod.spec["volumes"]}
    (container,) = pod.spec["containers"][:1]
    env = [each for each in container.get("env", []) if each["name"] in values or "value" in each]
    return runtime.bundle(
        folder, image, pod.spec, {**container, "env": env}, values=values, files=files, command=command
    )


def _cannot_write(
    image: Image, work: Path, pod: PodSpec, objects: list[Object], values: dict[str, str], say: Say
) -> None:
    script = "import os, pathlib; assert os.getuid() == 10001; pathlib.Path('/opt/penstock/x').write_text('')"
    folder = _bundle(work / "write", image, pod, objects, values, command=["python", "-c", script])
    code = runtime.start("penstock-check-write", folder).wait(_STOP_S)
    text = (folder / "log").read_text("utf-8", "replace")
    if code == 0 or "Read-only file system" not in text:
        raise CheckError(f"{_BLOCKED}: {text[-500:]}")
    say(f"{_BLOCKED}: so it is")


@contextmanager
def _running(name: str, folder: Path, say: Say, what: str) -> Iterator[subprocess.Popen[bytes]]:
    say(what)
    process = runtime.start(name, folder)
    try:
        yield process
    except BaseException:
        runtime.stop(name, process, _STOP_S)
        raise
    code = runtime.stop(name, process, _STOP_S)
    # Ray's own end, once it has drained, has the status 1.
    if code not in ((0, 1) if "head" in name else (0,)):
        raise CheckError(f"{name} ended with {code}: {(folder / 'log').read_text('utf-8', 'replace')[-2000:]}")
    say(f"{name.removeprefix('penstock-check-')}: ended on SIGTERM")


@contextmanager
def _redis() -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        raise MissingError("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--requirepass", _PASSWORD, "--save", ""]
    options += ["--maxmemory-policy", "noeviction"]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        yield f"redis://:{_PASSWORD}@127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def _until_ok(url: str, folder: Path, process: subprocess.Popen[bytes], token: str = "") -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError, urllib.error.URLError):
            _get(url, token)
            return
        time.sleep(0.2)
    raise _DidNotStartError(f"{url} did not answer: {(folder / 'log').read_text('utf-8', 'replace')[-3000:]}")


def _get(url: str, token: str = "") -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=5) as answer:
        text: str = answer.read().decode()
    return text
