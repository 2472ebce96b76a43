"""Precisions that accelerators run, run in another way, or refuse."""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.errors import SettingsError
from loadtest.plan.engine.abilities import ability, broken_blocks, check_abilities
from loadtest.plan.engine.architectures import KNOWN, load_shape
from loadtest.plan.engine.gpus import AMD, GPUS, load_gpu
from loadtest.plan.engine.shapes import BFLOAT16_ONLY, shape_of
from loadtest.plan.search import engines

LLAMA = load_shape("llama-3.1-8b")


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "why"),
    [
        ("llama-3.1-8b", "v100", "fp8", "precision: fp8 needs compute capability 7.5, and v100 has 7.0"),
        ("llama-3.1-8b", "v100", "fp4", "precision: fp4 needs compute capability 7.5, and v100 has 7.0"),
        ("gpt-oss-20b", "t4", "mxfp4", "precision: mxfp4 needs compute capability 8.0, and t4 has 7.5"),
        # What is asked for as fp4 is published as MXFP4.
        ("gpt-oss-20b", "t4", "fp4", "precision: mxfp4 needs compute capability 8.0, and t4 has 7.5"),
        ("gemma-3-4b", "t4", "bf16", "gemma-3-4b is not stable in float16, and bfloat16 needs compute capability 8.0"),
        ("llama-3.1-8b", "mi210", "fp8", "precision: fp8 needs CDNA 3 (mi300x or later), got mi210"),
        ("llama-3.1-8b", "mi300x", "fp4", "precision: fp4 (NVFP4) needs an accelerator of NVIDIA, got mi300x"),
    ],
)
def test_what_no_kernel_runs_is_refused_with_field_limit_and_value(
    model: str, gpu: str, precision: str, why: str
) -> None:
    shape = load_shape(model)
    assert why in ability(shape, load_gpu(gpu), precision).refused
    found, lost = engines(shape, [load_gpu(gpu)], [precision], prices={})
    assert ([], [ability(shape, load_gpu(gpu), precision).refused]) == (found, [each.why for each in lost])


@pytest.mark.parametrize(
    ("gpu", "precision", "said"),
    [
        ("a100", "fp8", "a100 has compute capability 8.0, and units for fp8 come with 8.9: weights only"),
        ("t4", "fp8", "t4 has compute capability 7.5, and units for fp8 come with 8.9: weights only"),
        ("h100", "fp4", "h100 has compute capability 9.0, and units for fp4 come with 10.0: weights only"),
        ("l40s", "fp4", "l40s has compute capability 8.9, and units for fp4 come with 10.0: weights only"),
        ("t4", "bf16", "t4 has compute capability 7.5, and units for bf16 come with 8.0: float16 takes its place"),
        ("v100", "bf16", "float16 takes its place, with a vLLM built from source"),
        ("v100", "int4", "GPTQ checkpoints only"),
    ],
)
def test_what_runs_in_another_way_says_so(gpu: str, precision: str, said: str) -> None:
    assert said in ability(LLAMA, load_gpu(gpu), precision).fallback
    found, _ = engines(LLAMA, [load_gpu(gpu)], [precision], prices={}, parallel=[4])
    assert {ability(LLAMA, load_gpu(gpu), precision).fallback} == {each.fallback for each in found}


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [("h100", "fp8"), ("l4", "fp8"), ("b200", "fp4"), ("rtx5090", "fp4"), ("a100", "int4"), ("t4", "int8"),
     ("mi300x", "fp8"), ("mi210", "bf16"), ("a10g", "bf16")],
)  # fmt: skip
def test_what_has_units_or_needs_none_says_nothing(gpu: str, precision: str) -> None:
    found = ability(LLAMA, load_gpu(gpu), precision)
    assert ("", "") == (found.refused, found.fallback)


def test_mxfp4_is_widened_where_no_unit_multiplies_it() -> None:
    shape = load_shape("gpt-oss-120b")
    widened = {name for name, gpu in GPUS.items() if ability(shape, gpu, "mxfp4").fallback}
    assert {"a100", "h100", "mi300x"} <= widened
    assert not {"b200", "gb10", "mi355x", "t4"} & widened


@pytest.mark.parametrize("gpu", ["t4", "v100"])
def test_a_cache_of_8_bits_needs_its_kernels(gpu: str) -> None:
    found = ability(LLAMA, load_gpu(gpu), "int8", kv_element_bytes=1.0)
    assert "kv-cache-dtype: fp8 needs compute capability 8.0, and" in found.refused
    assert "" == ability(LLAMA, load_gpu("a100"), "int8", kv_element_bytes=1.0).refused


def test_accelerators_have_the_units_that_their_capability_says() -> None:
    for name, gpu in GPUS.items():
        if gpu.capability != AMD:
            assert (gpu.capability >= 89) == (gpu.fp8 > gpu.bf16), name
            assert (gpu.capability >= 100) == (gpu.fp4 > gpu.fp8), name
            assert gpu.blackwell == (100 <= gpu.capability < 120), name
    assert ["t4", "v100", "v100-pcie"] == sorted(name for name, gpu in GPUS.items() if not gpu.has_bf16)


def test_one_accelerator_that_runs_it_is_enough() -> None:
    check_abilities(LLAMA, [load_gpu("v100"), load_gpu("h100")], ["fp8"])
    check_abilities(LLAMA, [load_gpu("v100")], ["fp8", "int4"])
    with pytest.raises(
        SettingsError, match=r"fp8 needs compute capability 7.5, and v100 has 7.0; v100 runs bf16, int4"
    ):
        check_abilities(LLAMA, [load_gpu("v100")], ["fp8"])


def test_a_precision_that_no_accelerator_runs_is_an_error_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3.1-8b", "--precision", "fp8", "--rate", "1", "--no-store"]
    assert 2 == main(["plan", *words, "--gpu", "v100"])
    said = " ".join(capsys.readouterr().err.split())
    assert "precision: fp8 needs compute capability 7.5, and v100 has 7.0; v100 runs bf16, int4, int8" in said


@pytest.mark.slow
def test_a_plan_lists_what_is_refused_and_tells_what_falls_back(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "demo", "--precision", "fp8", "--rate", "1", "--no-store", "--simulate", "1", "--draws", "1"]
    lengths = ["--prompt-tokens", "64", "--output-tokens", "32"]
    assert 0 == main(["plan", *words, *lengths, "--gpu", "v100,a100", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert "units for fp8 come with 8.9" in data["candidates"][0]["fallback"]
    assert ["v100, fp8"] == [each["name"] for each in data["rejected"] if "compute capability" in each["why"]]


def source_of_vllm(file: str) -> str:
    """Read a module of vLLM, because importing it takes long."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text(encoding="utf-8")


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize(
    ("file", "config", "precision"),
    [
        ("fp8.py", "Fp8Config", "fp8"),
        ("modelopt.py", "ModelOptNvFp4Config", "fp4"),
        ("mxfp4.py", "Mxfp4Config", "mxfp4"),
        ("auto_gptq.py", "AutoGPTQConfig", "int4"),
    ],
)
def test_the_least_capability_is_that_of_vllm(file: str, config: str, precision: str) -> None:
    tree = ast.parse(source_of_vllm(f"model_executor/layers/quantization/{file}"))
    (found,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == config)
    (least,) = (each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "get_min_capability")
    (value,) = (each.value.value for each in least.body
                if isinstance(each, ast.Return) and isinstance(each.value, ast.Constant))  # fmt: skip
    shape = load_shape("gpt-oss-120b" if precision == "mxfp4" else "llama-3.1-8b")
    refused = {gpu.capability for gpu in GPUS.values() if ability(shape, gpu, precision).refused} - {AMD}
    assert {gpu.capability for gpu in GPUS.values() if AMD < gpu.capability < value} == refused


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_families_without_float16_are_those_of_vllm() -> None:
    source = source_of_vllm("config/model.py")
    listed = source.partition("_FLOAT16_NOT_SUPPORTED_MODELS = {")[2].partition("}")[0]
    assert set(re.findall(r'^\s*"(\w+)":', listed, flags=re.M)) == BFLOAT16_ONLY
    named = ("gemma-2-2b", "gemma-3-1b", "gemma-3-27b", "llama-3.1-8b")
    assert [True, True, True, False] == [not load_shape(name).float16 for name in named]


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("model", "ranks", "words"),
    [
        ("qwen3-4b", 8, "weight_block_size is 128, and a width of 9,728 split over 8 GPUs, 1216 each, has no whole"),
        ("qwen3-4b", 4, None),
        ("qwen3-32b", 8, None),
        ("deepseek-v3", 16, None),
        ("deepseek-v3", 32, "a width of 18,432 split over 32 GPUs, 576 each"),
        # Kernels for experts take scales of blocks of 32.
        ("qwen3-30b-a3b", 8, None),
        ("qwen3-30b-a3b", 16, "a width of 768 split over 16 GPUs, 48 each"),
    ],
)
def test_published_blocks_are_split_whole(model: str, ranks: int, words: str | None) -> None:
    """Engines refuse weights whose inner width on a rank is no multiple of a block that shares a scale."""
    shape = shape_of(model, {**KNOWN[model], "quantization_config": BLOCKS})
    found = broken_blocks(shape, ranks, "fp8")
    assert (found is None) == (words is None)
    assert (words or "") in (found or "")
    assert broken_blocks(shape, ranks, "bf16") is None
    assert broken_blocks(load_shape(model.replace("deepseek-v3", "qwen3-4b")), ranks, "fp8") is None


def test_a_split_that_breaks_blocks_is_refused() -> None:
    shape = shape_of("x", {**KNOWN["qwen3-4b"], "quantization_config": BLOCKS})
    found, lost = engines(shape, [GPUS["l4"]], ["fp8"], prices={})
    assert {1, 2, 4} == {each.gpus for each in found if each.layout.pipeline == 1}
    assert ["8 x l4, fp8"] == [each.name for each in lost if "weight_block_size" in each.why]


@pytest.mark.parametrize("sides", ["128", [128], [128, 0], [128, True], {"n": 128}])
def test_blocks_of_another_form_are_refused(sides: object) -> None:
    section = {"quant_method": "fp8", "weight_block_size": sides}
    with pytest.raises(SettingsError, match="weight_block_size must be a list of two whole numbers of at least 1, got"):
        shape_of("x", {**KNOWN["qwen3-4b"], "quantization_config": section})
