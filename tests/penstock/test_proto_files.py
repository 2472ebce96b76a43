"""The .proto files suit the code generators of other languages, and Buf's rules."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from penstock.internal.v1 import replica_pb2
from penstock.v1 import (
    admin_pb2,
    announced_pb2,
    embeddings_pb2,
    inference_pb2,
    jobs_pb2,
    outlook_pb2,
    records_pb2,
    registry_pb2,
    rollout_pb2,
    types_pb2,
)

SOURCES = Path(__file__).parents[2] / "proto"
PUBLIC = [
    module.DESCRIPTOR
    for module in (
        admin_pb2,
        announced_pb2,
        embeddings_pb2,
        inference_pb2,
        jobs_pb2,
        outlook_pb2,
        records_pb2,
        registry_pb2,
        rollout_pb2,
        types_pb2,
    )
]
INNER = replica_pb2.DESCRIPTOR


def buf(*arguments: str, folder: Path = SOURCES) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("buf")
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a copy of the .proto files and of Buf's settings, to be changed."""
    shutil.copy(SOURCES / "buf.yaml", tmp_path)
    shutil.copytree(SOURCES / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("*.py", "*.pyi"))
    return tmp_path


@pytest.mark.parametrize("file", [*PUBLIC, INNER], ids=lambda file: file.name)
def test_every_file_names_its_package_in_other_languages(file: FileDescriptor) -> None:
    options, name = file.GetOptions(), Path(file.name).stem
    inner = "internal/" if file is INNER else ""
    assert f"penstock.dev/go/penstock/{inner}v1;{'internal' if inner else 'penstock'}v1" == options.go_package
    assert f"dev.penstock.{inner.replace('/', '.')}v1" == options.java_package
    assert options.java_multiple_files
    assert f"{name.capitalize()}Proto" == options.java_outer_classname
    assert ("PSKI" if inner else "PSK") == options.objc_class_prefix


def test_a_java_class_of_a_file_has_no_name_of_a_message() -> None:
    messages = {name for file in (*PUBLIC, INNER) for name in (*file.message_types_by_name, *file.enum_types_by_name)}
    assert set() == messages & {file.GetOptions().java_outer_classname for file in (*PUBLIC, INNER)}


def test_the_public_package_has_nothing_of_the_inner_protocol() -> None:
    assert {"penstock/v1"} == {str(Path(file.name).parent) for file in PUBLIC}
    assert {file.name for file in PUBLIC} == {
        str(path.relative_to(SOURCES)) for path in (SOURCES / "penstock" / "v1").glob("*.proto")
    }
    assert "penstock.internal.v1" == INNER.package
    needed = {dependency.name for file in PUBLIC for dependency in file.dependencies}
    assert INNER.name not in needed


def test_the_page_of_the_api_names_every_file() -> None:
    page = (SOURCES / "README.md").read_text(encoding="utf-8")
    table = page.partition("## Which file has what")[2].partition("\n## ")[0]
    assert {Path(file.name).name for file in PUBLIC} == set(re.findall(r"`(\w+\.proto)`", table))
    assert {name for file in PUBLIC for name in file.services_by_name} <= set(re.findall(r"`(\w+Service)`", table))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  string model = 1;\n", ""),
        ("  string model = 1;", "  bytes model = 1;"),
        ("  string model = 1;", "  string model_name = 1;"),
        ("penstockv1", "penstock"),
        ("rpc GetModel(", "rpc DescribeModel("),
    ],
    ids=["removed", "type", "name", "go package", "method"],
)
def test_buf_notices_a_change_that_breaks_clients(copied: Path, old: str, new: str) -> None:
    file = copied / "penstock" / "v1" / "inference.proto"
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    found = buf("breaking", "--against", str(SOURCES), folder=copied)
    assert 100 == found.returncode, found.stderr
    assert "penstock/v1/inference.proto" in found.stdout


@pytest.mark.slow
def test_buf_lets_a_new_field_pass(copied: Path) -> None:
    file = copied / "penstock" / "v1" / "inference.proto"
    text = file.read_text(encoding="utf-8")
    field = "  // Number for a test. Default 0.\n  uint32 number_for_a_test = 900;\n"
    start = "message GenerateRequest {\n"
    file.write_text(text.replace(start, start + field), encoding="utf-8")
    for done in (buf("breaking", "--against", str(SOURCES), folder=copied), buf("lint", folder=copied)):
        assert (0, "") == (done.returncode, done.stdout + done.stderr)
