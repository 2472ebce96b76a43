"""What the comparison of two releases finds, on small made-up ones."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from deployments.engines.vllm.internals import __main__ as command
from deployments.engines.vllm.internals.compare import Finding, compare
from deployments.engines.vllm.internals.sources import Sources
from deployments.engines.vllm.internals.used import USED, Used

BEFORE = {
    "vllm/__init__.py": "",
    "vllm/core.py": """
from vllm.base import Base
class Core(Base):
    def step(self, batch, limit=4): ...
    @property
    def busy(self): ...
class Output(Base):
    request_id: str
    tokens: list[int]
class Reason(Enum):
    STOP = 0
    LENGTH = 1
if TYPE_CHECKING:
    current: Core
def make(kind, *, size=1): ...
""",
    "vllm/base.py": """
class Base:
    kind: str
    def __init__(self):
        self.queue = []
""",
    "vllm/api.py": "from .core import Core as Engine, make\n",
}


def written(folder: Path, files: dict[str, str]) -> Sources:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return Sources(folder)


def differences(tmp_path: Path, used: Used, **changed: str) -> list[Finding]:
    before = written(tmp_path / "before", BEFORE)
    after = {**BEFORE, **{f"vllm/{name}.py": text for name, text in changed.items()}}
    return compare([used], before, written(tmp_path / "after", after))


ENGINE = Used("vllm.api:Engine", attributes=("step", "busy", "queue", "kind"))
OUTPUT = Used("vllm.core:Output", attributes=("tokens",))


def core(old: str, new: str) -> str:
    assert old in BEFORE["vllm/core.py"]
    return BEFORE["vllm/core.py"].replace(old, new)


@pytest.mark.parametrize("used", [ENGINE, OUTPUT, Used("vllm.core:current"), Used("vllm.api:make", ("kind", "size"))])
def test_the_same_release_differs_in_nothing(tmp_path: Path, used: Used) -> None:
    """Names are found through imports and bases, in conditions, and where a constructor sets them."""
    assert [] == differences(tmp_path, used)


def test_what_is_gone_is_told_with_the_place_to_which_it_moved(tmp_path: Path) -> None:
    gone = differences(tmp_path, Used("vllm.core:make"), core=core("def make", "def build"))
    assert [Finding("gone", "vllm.core:make")] == gone
    moved = differences(tmp_path, Used("vllm.base:Base"), base="", other=BEFORE["vllm/base.py"])
    assert [Finding("moved", "vllm.base:Base", "now vllm.other:Base")] == moved
    module = differences(tmp_path, Used("vllm.none:Some"))
    assert [Finding("gone", "vllm.none:Some", "its module is gone")] == module


def test_a_lost_attribute_field_or_member_is_told(tmp_path: Path) -> None:
    lost = differences(tmp_path, ENGINE, base="class Base:\n    kind: str\n")
    assert [Finding("gone", "vllm.api:Engine.queue")] == lost
    field = differences(tmp_path, OUTPUT, core=core("    tokens: list[int]\n", ""))
    assert [Finding("gone", "vllm.core:Output.tokens")] == field
    member = differences(tmp_path, Used("vllm.core:Reason", members=("LENGTH",)), core=core("    LENGTH = 1\n", ""))
    assert [Finding("gone", "vllm.core:Reason.LENGTH")] == member


def test_other_parameters_are_told(tmp_path: Path) -> None:
    """A function that we replace must take what it took; one that we call must take what we pass."""
    other = core("limit=4", "limit=8")
    changed = differences(tmp_path, ENGINE, core=other)
    assert [Finding("changed", "vllm.api:Engine.step", "(self, batch, limit=4) -> (self, batch, limit=8)")] == changed
    exact = differences(
        tmp_path, Used("vllm.core:Core.step", ("self", "batch", "limit")), core=core("limit=4", "limit=4, more=0")
    )
    assert {"gone", "changed"} == {each.kind for each in exact}
    passed = differences(tmp_path, Used("vllm.core:make", passes=("size",)), core=core("size=1", "count=1"))
    assert Finding("gone", "vllm.core:make(size=)", "no such parameter") in passed


def test_new_fields_and_another_order_are_told_and_break_nothing(tmp_path: Path) -> None:
    new = differences(tmp_path, OUTPUT, core=core("tokens: list[int]", "tokens: list[int]\n    error: str"))
    assert [Finding("new", "vllm.core:Output.error")] == new
    swapped = core("    request_id: str\n    tokens: list[int]", "    tokens: list[int]\n    request_id: str")
    order = differences(tmp_path, OUTPUT, core=swapped)
    assert [Finding("changed", "vllm.core:Output", "other order: kind, tokens, request_id")] == order
    assert not any(each.breaks for each in (*new, *order))


def test_the_command_ends_with_one_if_something_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "before", BEFORE)
    wheel = tmp_path / "vllm-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in BEFORE.items():
            archive.writestr(name, text.replace("LENGTH", "LONG"))
        archive.writestr("vllm/kernel.so", b"\x7fELF")
    monkeypatch.setattr(command, "_installed", lambda: ("9.9.8", tmp_path / "before"))
    monkeypatch.setattr(command, "download", lambda package, version, folder: wheel)
    monkeypatch.setattr(command, "USED", (Used("vllm.core:Reason", members=("STOP",)),))
    assert 0 == command.main(["9.9.9", "--keep", str(tmp_path / "kept")])
    assert "new     vllm.core:Reason.LONG" in capsys.readouterr().out
    assert not (tmp_path / "kept" / "unpacked" / "vllm" / "kernel.so").exists()
    monkeypatch.setattr(command, "USED", (Used("vllm.core:Reason", members=("LENGTH",)),))
    assert 1 == command.main(["9.9.9", "--keep", str(tmp_path / "again")])
    assert "gone    vllm.core:Reason.LENGTH" in capsys.readouterr().out
    monkeypatch.setattr(command, "download", lambda package, version, folder: None)
    assert 2 == command.main(["9.9.9"])


def test_every_entry_of_the_list_is_there_once() -> None:
    names = [(each.name, each.parameters, each.message, each.attributes) for each in USED]
    assert len(names) == len(set(names))
    assert all(each.module.startswith("vllm") for each in USED)
