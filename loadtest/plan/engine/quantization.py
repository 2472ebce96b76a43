"""The precision of published weights, as the tools that quantise write it into a model's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.plan.engine.fields import Fields

_PLAIN = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "deepspeedfp": "fp8", "ptpc_fp8": "fp8", "nvfp4": "fp4",
}  # fmt: skip
_MODELOPT = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8", "FP8_PB_REAL": "fp8", "NVFP4": "fp4",
    "NVFP4_AWQ": "fp4", "W4A16_NVFP4": "fp4", "W4A16_AWQ": "int4", "W4A8_AWQ": "int4", "INT4_AWQ": "int4",
    "INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8", "MXFP4": "mxfp4", "W4A8_NVFP4_FP8": "fp4",
}  # fmt: skip
_BY_BITS = {
    ("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8", ("float", 4): "fp4", ("fp", 8): "fp8",
    ("mx_fp", 4): "mxfp4", ("nv_fp", 4): "fp4",
}  # fmt: skip
_DTYPES = {
    "bfloat16": "bf16", "float16": "bf16", "float32": "bf16", "half": "bf16", "auto": "bf16", "": "bf16",
    "float8_e4m3fn": "fp8",
}  # fmt: skip

_WHOLE_BITS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "autoround")
_ATTENTION = tuple(f"model.layers.0.self_attn.{each}" for each in ("q_proj", "o_proj", "q_b_proj"))
"""Matrices of attention, by one of which a pattern is tried."""
_SMALL = re.compile(r"norm|index|rotary|scale")
_BESIDE = re.compile(r"vision|visual|audio|image|speech|mtp|eagle|draft")
_LAYER = re.compile(r"layers\.(\d+)\.$")


@dataclass(frozen=True, slots=True)
class Native:
    """Precision of published weights."""

    precision: str
    experts_only: bool = False
    """Whether attention is left in 16 bits, and with it all but the routed experts where there are any."""
    block: int = 0
    """Side of the blocks of weights that share a scale; 0 without such blocks."""


def native_of(fields: Fields, more: Mapping[str, Any] | None = None) -> Native:
    """Return the precision of the weights.

    Args:
        fields: the configuration.
        more: the object in hf_quant_config.json, where older ModelOpt exports keep it.

    Raises:
        SettingsError: the method, the algorithm or the bits are unknown.
    """
    section = fields.section("quantization_config") or fields.section("compression_config")
    if not section:
        return _beside(fields, more or {})
    method = str(section.get("quant_method", "")).lower()
    if method in _PLAIN:
        return Native(_PLAIN[method], method == "mxfp4" or _leaves_attention(fields, section), _block(fields, section))
    if method.startswith("modelopt"):
        return _of_modelopt(fields, section, method)
    if method in _WHOLE_BITS:
        return Native(_of_bits(fields, section, method), _leaves_attention(fields, section))
    if method in ("compressed-tensors", "sparseml"):
        return _compressed(fields, section)
    if method == "bitsandbytes":
        if not (section.get("load_in_8bit") or section.get("load_in_4bit")):
            raise fields.wrong("quantization_config.load_in_4bit", "or load_in_8bit must be true", None)
        return Native("int8" if section.get("load_in_8bit") else "int4")
    if method == "quark":
        return Native(_quark(fields, section), _leaves_attention(fields, section))
    known = sorted({*_PLAIN, "modelopt", "awq", "gptq", "auto-round", "compressed-tensors", "bitsandbytes", "quark"})
    raise fields.wrong("quantization_config.quant_method", f"must be one of {', '.join(known)}", method)


def _beside(fields: Fields, more: Mapping[str, Any]) -> Native:
    """Return what the file beside a configuration says of the weights, or else their data type."""
    inner = more.get("quantization")
    if isinstance(inner, Mapping):
        algorithm = _modelopt(fields, "hf_quant_config.json: quant_algo", inner.get("quant_algo"))
        return Native(algorithm, _leaves_attention(fields, inner))
    dtype = fields.text("torch_dtype") or fields.text("dtype")
    if dtype.removeprefix("torch.") not in _DTYPES:
        raise fields.wrong("torch_dtype", f"must be one of {', '.join(each for each in _DTYPES if each)}", dtype)
    return Native(_DTYPES[dtype.removeprefix("torch.")])


def _of_modelopt(fields: Fields, section: Mapping[str, Any], method: str) -> Native:
    inner = section.get("quantization")
    inner = inner if isinstance(inner, Mapping) else {}
    found = section.get("quant_algo") or inner.get("quant_algo")
    if found is None and method == "modelopt_fp4":
        found = "NVFP4"
    left_out = _leaves_attention(fields, section) or _leaves_attention(fields, inner)
    return Native(_modelopt(fields, "quantization_config.quant_algo", found), left_out)


def _of_bits(fields: Fields, section: Mapping[str, Any], method: str) -> str:
    """Return the precision that a number of bits is, of integers unless a tool tells another kind."""
    bits = section.get("bits", section.get("w_bit", 4 if method.startswith("awq") else None))
    told = str(section.get("data_type") or "int")
    kind = next((each for each in ("mx_fp", "nv_fp", "fp", "int") if told.startswith(each)), None)
    if kind is None:
        raise fields.wrong("quantization_config.data_type", "must be int, fp, mx_fp or nv_fp", told)
    return _bits(fields, "quantization_config.bits", kind, bits)


def _block(fields: Fields, section: Mapping[str, Any]) -> int:
    sides = section.get("weight_block_size")
    return 0 if sides is None else _side(fields, "quantization_config.weight_block_size", sides)


def _side(fields: Fields, field: str, given: object) -> int:
    sides = given
    if isinstance(given, str) and all(each.isdecimal() for each in given.split("x")):
        sides = [int(each) for each in given.split("x")]
    whole = isinstance(sides, list) and all(type(each) is int and each > 0 for each in sides)
    if not isinstance(sides, list) or not whole or len(sides) != 2:
        raise fields.wrong(field, "must be a list of two whole numbers of at least 1", given)
    # Ranks split the inputs of the second matrices, whose side is the last one.
    return int(sides[-1])


def _modelopt(fields: Fields, field: str, algorithm: object) -> str:
    found = _MODELOPT.get(str(algorithm).upper())
    if found is None:
        raise fields.wrong(field, f"must be one of {', '.join(_MODELOPT)}", algorithm)
    return found


def _bits(fields: Fields, field: str, kind: str, bits: object) -> str:
    found = _BY_BITS.get((kind, bits)) if isinstance(bits, int) else None
    if found is None:
        raise fields.wrong(field, "must be 4 or 8", bits)
    return found


def _compressed(fields: Fields, section: Mapping[str, Any]) -> Native:
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise fields.wrong("quantization_config.config_groups", "must be an object with a group", groups)
    found, block, targets = set(), 0, list[str]()
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise fields.wrong(f"quantization_config.config_groups.{name}.weights", "must be one JSON object", weights)
        field = f"quantization_config.config_groups.{name}.weights.num_bits"
        precision = _bits(fields, field, str(weights.get("type", "int")), weights.get("num_bits"))
        if weights.get("strategy") == "block":
            field = f"quantization_config.config_groups.{name}.weights.block_structure"
            block = _side(fields, field, weights.get("block_structure"))
        named = group.get("targets")
        targets += [str(each) for each in named] if isinstance(named, list) else ["Linear"]
        form = str(group.get("format") or section.get("format") or "")
        found.add("mxfp4" if precision == "fp4" and form.startswith("mxfp4") else precision)
    if len(found) > 1:
        raise fields.wrong("quantization_config.config_groups", "must have weights of one precision", sorted(found))
    # Groups are by class, or by patterns of names.
    all_layers = any(each == "Linear" or _matches_attention(each) for each in targets)
    return Native(found.pop(), not all_layers or _leaves_attention(fields, section), block)


def _leaves_attention(fields: Fields, section: Mapping[str, Any]) -> bool:
    """Return whether attention is among what a tool left in 16 bits. Then all but the experts is."""
    lists = ("ignore", "ignored_layers", "exclude_modules", "modules_to_not_convert", "exclude")
    listed = [str(each) for name in lists if isinstance(found := section.get(name), list) for each in found]
    # GPTQ leaves out what a minus stands before, AutoRound what keeps its bits.
    rules, kept = (section.get(name) for name in ("dynamic", "extra_config"))
    if isinstance(rules, Mapping):
        listed += [f"re:{each[2:]}" for each in rules if each.startswith("-:")]
    if isinstance(kept, Mapping):
        wide = (name for name, own in kept.items() if isinstance(own, Mapping) and own.get("bits") in (16, 32))
        listed += wide
    layers = fields.whole_or_zero("num_hidden_layers")
    return any(_matches_attention(each) or _is_attention(each, layers) for each in listed)


def _matches_attention(pattern: str) -> bool:
    """Return whether a pattern of names, after "re:", matches a matrix of attention."""
    if not pattern.startswith("re:"):
        return False
    try:
        found = re.compile(pattern[3:])
    except re.error:
        return False
    return any(found.match(each) for each in _ATTENTION)


def _is_attention(module: str, layers: int) -> bool:
    """Return whether a module that was left out is attention of the model's own layers. Tools list small parts of it
    too, and encoders of images and sound, and layers that only draft.
    """
    before, found, part = module.partition("self_attn")
    if not found or _SMALL.search(part) or _BESIDE.search(before):
        return False
    number = _LAYER.search(before)
    return number is None or not layers or int(number[1]) < layers


def _quark(fields: Fields, section: Mapping[str, Any]) -> str:
    found = _quark_weight(section.get("global_quant_config"))
    others = section.get("layer_quant_config")
    parts = others.values() if isinstance(others, Mapping) else ()
    if mixed := {each for part in parts if (each := _quark_weight(part)) != found}:
        field = "quantization_config.layer_quant_config"
        raise fields.wrong(field, f"must have weights in {found or 'no precision'} as all layers have", sorted(mixed))
    precision = {"fp4": "mxfp4", "fp8_e4m3": "fp8", "int4": "int4", "uint4": "int4", "int8": "int8"}.get(found)
    if precision is None:
        field = "quantization_config.global_quant_config.weight.dtype"
        raise fields.wrong(field, "must be one of fp4, fp8_e4m3, int4, uint4, int8", found or None)
    return precision


def _quark_weight(part: object) -> str:
    """Return the data type of weights that a part of Quark's file tells; empty without one."""
    weight = part.get("weight") if isinstance(part, Mapping) else None
    if isinstance(weight, list) and weight:
        weight = weight[0]
    return str(weight.get("dtype", "")) if isinstance(weight, Mapping) else ""
