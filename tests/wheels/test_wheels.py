"""What the distributions hold. `make dist` installs them too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wheels import build
from tests.wheels.pythons import find

NEEDED = {
    "penstock_llm": {
        "router/console/static/index.html",
        "deployments/demo_model/weights/model.safetensors",
        "deployments/demo_model/weights/chat_template.jinja",
        "cluster/queue/redis/lua/submit.lua",
        "loadtest/traces/sample.csv",
        "cluster/py.typed",
    },
    "penstock_client": {"penstock/py.typed", "penstock/v1/inference.proto", "penstock/internal/v1/replica.proto"},
}
"""One file of each kind that no import asks for: a list that is empty by mistake would prove nothing."""


@pytest.fixture(scope="module", params=sorted(build.FOLDERS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    build.build(out, request.param)
    return request.param, out


@pytest.mark.slow
def test_a_wheel_has_every_file_of_its_packages_and_no_other(built: tuple[str, Path]) -> None:
    name, out = built
    inside = build.files_in_wheel(build.wheel_of(out, name))
    assert build.files_of_packages(name) == inside
    assert NEEDED[name] <= inside


@pytest.mark.slow
def test_an_sdist_builds_and_has_no_tests_and_no_results(built: tuple[str, Path]) -> None:
    """The wheel was built from it."""
    name, out = built
    inside = build.files_in_sdist(build.sdist_of(out, name))
    assert build.files_of_packages(name) <= inside
    assert {"README.md", "pyproject.toml"} <= inside
    assert not [path for path in inside if path.split("/")[0] in ("tests", "out", ".venv", "k8s", ".github")]


def test_a_file_that_is_left_out_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hatch.build.targets.wheel]\npackages = ["one"]\nexclude = ["one/b", "*.md"]'
    )
    for path in ("one/a.py", "one/a.md", "one/b/c.py", "one/__pycache__/a.pyc", "one/d.lua"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    monkeypatch.setitem(build.FOLDERS, "one", tmp_path)
    assert {"one/a.py", "one/d.lua"} == build.files_of_packages("one")


def test_a_python_is_what_it_answers_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name on PATH may only say that the version is not installed."""
    for folder, text in (("shims", "#!/bin/sh\nexit 127\n"), ("versions/3.12.9/bin", "#!/bin/sh\necho 3.12\n")):
        program = tmp_path / folder / "python3.12"
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert tmp_path / "versions/3.12.9/bin/python3.12" == find("3.12")
    assert find("3.99") is None
