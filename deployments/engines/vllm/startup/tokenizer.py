"""The tokenizer of a vLLM engine, for routers."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, processors

from cluster.digests import TOKENIZER_FILE
from cluster.errors import EngineStartError
from deployments.engines import tokenizer_files


def files_of(config: Any) -> dict[str, bytes]:
    """Write the engine's tokenizer and its chat template down. vLLM keeps both for its own use.

    Args:
        config: vLLM's ModelConfig.

    Raises:
        EngineStartError: the tokenizer can't be loaded, or routers could not use it.
    """
    from vllm.renderers.hf import resolve_chat_template
    from vllm.tokenizers.registry import cached_tokenizer_from_config, get_tokenizer, tokenizer_args_from_config

    try:
        own = cached_tokenizer_from_config(config)
        mode = tokenizer_args_from_config(config)[0]
        # Mistral's own library has another form; `transformers` can read the same files.
        tokenizer = own if mode != "mistral" else _in_other_form(get_tokenizer, config)
        # Any list of tools selects the template for them.
        plain = resolve_chat_template(tokenizer, None, None, model_config=config)
        tool_use = resolve_chat_template(tokenizer, None, [], model_config=config)
    except Exception as error:
        raise EngineStartError(f"the tokenizer of {config.tokenizer} can't be loaded: {error}") from error
    templates = tokenizer_files.Templates(plain, tool_use)
    files = tokenizer_files.of_tokenizer(tokenizer, templates, name=config.tokenizer)
    return files if tokenizer is own else files | {TOKENIZER_FILE: _as_mistral(files[TOKENIZER_FILE], own, config)}


def _as_mistral(content: bytes, own: Any, config: Any) -> bytes:
    """Add the tokens that Mistral's library puts before a text, and compare."""
    encoder = Tokenizer.from_buffer(content)
    before = own.encode("")
    if encoder.encode("").ids != before:
        names = [(str(encoder.id_to_token(token)), token) for token in before]
        single = " ".join((*(name for name, _ in names), "$A"))
        encoder.post_processor = processors.TemplateProcessing(single=single, special_tokens=names)
    tokenizer_files.check(encoder, own, name=config.tokenizer)
    return encoder.to_str().encode()


def _in_other_form(get_tokenizer: Any, config: Any) -> Any:
    return get_tokenizer(
        config.tokenizer,
        tokenizer_mode="hf",
        revision=config.tokenizer_revision,
        trust_remote_code=config.trust_remote_code,
    )
