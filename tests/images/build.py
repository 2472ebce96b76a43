"""The build of an image in a folder: each stage is a file system, and RUN is carried out in it by chroot."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.images.base import copied
from tests.images.dockerfile import Copy, Dockerfile, Instruction, Stage, command_of, copy_of, expand
from tests.wheels.build import ROOT

_OF_THE_NETWORK = ("PIP_", "UV_", "SSL_", "REQUESTS_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
"""Variables of this machine that say how packages are reached; a build behind a proxy has them too."""
_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs", "/etc/apt/apt.conf.d", "/dev")
"""Files of this machine that a step sees, and the image does not keep."""
_ENTER = """
set -eu
root=$1 work=$2 script=$3
shift 3
for path; do
  [ -e "$path" ] || continue
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$(dirname "$root$path")"; touch "$root$path"; fi
  mount --rbind "$path" "$root$path"
done
mount -t proc proc "$root/proc"
exec chroot "$root" /bin/sh -c 'cd "$1" && exec /bin/sh -c "$2"' sh "$work" "$script"
"""


@dataclass(slots=True)
class Image:
    """A stage that has been built."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    command: list[str] = field(default_factory=list)


Say = Callable[[str], None]


def build(
    file: Dockerfile, folder: Path, bases: Callable[[str], Path], say: Say, arguments: Mapping[str, str]
) -> Image:
    """Build a file. Return its last stage.

    Args:
        file: what to build.
        folder: where the stages' file systems go; removed first.
        bases: makes the file system of a base image.
        say: tells the step that begins.
        arguments: build arguments instead of the defaults inside of stages.
    """
    shutil.rmtree(folder, ignore_errors=True)
    built: dict[str, Image] = {}
    image = None
    for number, stage in enumerate(file.stages):
        image = _stage(stage, folder / f"{number}-{stage.name or 'image'}", built, bases, say, arguments)
        built[stage.name] = image
    assert image is not None
    return image


def _stage(
    stage: Stage,
    root: Path,
    built: Mapping[str, Image],
    bases: Callable[[str], Path],
    say: Say,
    given: Mapping[str, str],
) -> Image:
    say(f"FROM {stage.base.partition('@')[0]}")
    if stage.base in built:
        base = built[stage.base]
        image = Image(root, dict(base.environment), base.user, base.folder, list(base.command))
        copied(base.root, root)
    else:
        image = Image(root, {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
        copied(bases(stage.base), root)
    arguments: dict[str, str] = {}
    for each in stage.instructions:
        say(f"{each.name} {each.text if len(each.text) < 100 else each.text[:97] + '...'}")
        _carry_out(each, image, arguments, built, given)
    if stage.last("CMD") is not None:
        image.command = command_of(stage)
    return image


def _carry_out(
    each: Instruction,
    image: Image,
    arguments: dict[str, str],
    built: Mapping[str, Image],
    given: Mapping[str, str],
) -> None:
    variables = {**image.environment, **arguments}
    match each.name:
        case "ARG":
            arguments |= {name: given.get(name, value) for name, value in each.pairs().items()}
        case "ENV":
            image.environment |= {name: expand(value, variables) for name, value in each.pairs().items()}
        case "WORKDIR":
            image.folder = expand(each.text, variables)
            (image.root / image.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "USER":
            image.user = each.text
        case "COPY":
            _copy(copy_of(each), image, built)
        case "RUN":
            _run(each.text, image, variables)


def _copy(copy: Copy, image: Image, built: Mapping[str, Image]) -> None:
    target = image.root / (copy.to if copy.to.startswith("/") else f"{image.folder}/{copy.to}").lstrip("/")
    for name in copy.sources:
        source = (built[copy.stage].root / name.lstrip("/")) if copy.stage else context(name)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            ignore = None if copy.stage else shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)
        else:
            into = len(copy.sources) > 1 or copy.to.endswith("/") or target.is_dir()
            place = target / source.name if into else target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)


def context(name: str) -> Path:
    """Return a file of the build's context.

    Raises:
        FileNotFoundError: it is not there, or .dockerignore keeps it back.
    """
    rules = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.strip()]
    sent = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        if fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/"):
            sent = rule.startswith("!")
    path = ROOT / name
    if not sent or not path.exists():
        raise FileNotFoundError(f"{name}: {'no such file' if sent else '.dockerignore keeps it back'}")
    return path


def _run(script: str, image: Image, variables: Mapping[str, str]) -> None:
    network = {name: value for name, value in os.environ.items() if name.startswith(_OF_THE_NETWORK)}
    links = [value for name, value in network.items() if name.endswith("FIND_LINKS") and value.startswith("/")]
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", _ENTER, "sh"]
    environment = {"HOME": "/root", **network, **variables}
    subprocess.run([*command, str(image.root), image.folder, script, *_FILES, *links], env=environment, check=True)
