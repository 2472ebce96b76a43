"""The tokenizer files that a replica gives to routers.

They have one form for all models: tokenizer.json, tokenizer_config.json with the special tokens, and
chat_template.jinja where there is a template. Model repositories keep the same things in many places, and the engine's
tokenizer may be none of their files: `transformers` adds tokens, and builds some tokenizers anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cluster.digests import CONFIG_FILE, TEMPLATE_FILE, TOKENIZER_FILE
from cluster.errors import EngineStartError

_SAMPLES = (
    "",
    "Hello, world! It's 2024; don't.",
    "def f(x):\n\treturn x**2  # 1234567890\n\n\n    pass",
    "  spaces at both ends  \r\n",
    "naïve café \u2013 “quotes” … €5 e\u0301 ﬁ ①",
    "漢字かな交じり文 한국어 русский العربية हिन्दी ไทย",
    "👩‍👩‍👧‍👦🇩🇪 \ufeff\u200d\u00a0\u3000",
    '<html>&amp;</html> {"a": [1, 2.5e-3]} CamelCase ALLCAPS snake_case ▁Ġ',
)
"""Texts of which the files must make the same ids as the engine's tokenizer."""


def of_tokenizer(tokenizer: Any, template: str | None, *, name: str) -> dict[str, bytes]:
    """Write down a tokenizer of `transformers`, and try the result.

    Args:
        tokenizer: the engine's own.
        template: the chat template that the engine's server would use.
        name: the model's name or folder, for errors.

    Raises:
        EngineStartError: it can't be written as a tokenizer.json that makes the same ids.
    """
    kind = type(tokenizer).__name__
    try:
        encoder = _plain(_encoder(tokenizer))
        content = encoder.to_str()
    except Exception as error:
        # The libraries behind it raise exceptions of many kinds.
        raise EngineStartError(
            f"the tokenizer of {name} ({kind}) can't be written as {TOKENIZER_FILE}, which routers need: {error}"
        ) from error
    config: dict[str, Any] = dict(getattr(tokenizer, "special_tokens_map", {}))
    if getattr(tokenizer, "split_special_tokens", False):
        encoder.encode_special_tokens = config["split_special_tokens"] = True
    specials = [f"a {token} b{token}" for token in config.values() if isinstance(token, str)]
    check(encoder, tokenizer, [*_SAMPLES, *specials], name=name)
    files = {
        TOKENIZER_FILE: content.encode(),
        CONFIG_FILE: json.dumps(config, ensure_ascii=False, sort_keys=True).encode(),
    }
    return files | ({TEMPLATE_FILE: template.encode()} if template else {})


def check(encoder: Tokenizer, tokenizer: Any, texts: Sequence[str] = _SAMPLES, *, name: str) -> None:
    """Compare the ids of texts, with and without the special tokens that the tokenizer adds to text.

    Raises:
        EngineStartError: they are not the same.
    """
    for text in texts:
        for special in (False, True):
            wanted = list(tokenizer.encode(text, add_special_tokens=special))
            found = encoder.encode(text, add_special_tokens=special).ids
            if found != wanted:
                raise EngineStartError(
                    f"the tokenizer of {name} ({type(tokenizer).__name__}) is not the same as {TOKENIZER_FILE}, which "
                    f"routers need: for {text!r} it makes the ids {wanted[:20]}, and not {found[:20]}"
                )


def of_folder(folder: Path) -> dict[str, bytes]:
    """Read a model's folder as `transformers` does, without it where tokenizer.json has all tokens. Then a tokenizer
    that `transformers` would build anew is taken as it is.

    Raises:
        EngineStartError: the folder has no tokenizer, or one that can't be read.
    """
    try:
        config = _object(folder / CONFIG_FILE)
        if "added_tokens_decoder" not in config:
            config |= _object(folder / "special_tokens_map.json")
        template = _template(folder, config)
        if not (folder / TOKENIZER_FILE).is_file() or _lacks_tokens(folder, config):
            return _loaded(folder, template)
        files = {TOKENIZER_FILE: _readable(folder / TOKENIZER_FILE)}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngineStartError(f"the tokenizer in {folder} can't be read: {error}") from error
    config.pop("chat_template", None)
    files[CONFIG_FILE] = json.dumps(config, ensure_ascii=False, sort_keys=True).encode()
    return files | ({TEMPLATE_FILE: template.encode()} if template else {})


def _readable(file: Path) -> bytes:
    content = file.read_bytes()
    try:
        Tokenizer.from_buffer(content)
    except Exception as error:
        # The library raises this class itself.
        raise ValueError(f"{file.name}: {error}") from error
    return content


def _plain(encoder: Tokenizer) -> Tokenizer:
    """Return a copy that neither truncates nor pads. The library keeps these two from the last call."""
    copy = Tokenizer.from_str(encoder.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _encoder(tokenizer: Any) -> Tokenizer:
    own = getattr(tokenizer, "_tokenizer", None)
    if isinstance(own, Tokenizer):
        return own
    from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS, TikTokenConverter, convert_slow_tokenizer

    # Remote code on top of tiktoken has a pattern of its own.
    pattern = getattr(tokenizer, "pat_str", None)
    if pattern is None or type(tokenizer).__name__ in SLOW_TO_FAST_CONVERTERS:
        converted: Tokenizer = convert_slow_tokenizer(tokenizer)
    else:
        added = tokenizer.get_added_vocab()
        specials = sorted(added, key=added.__getitem__)
        converted = TikTokenConverter(tokenizer.vocab_file, pattern, extra_special_tokens=specials).converted()
    return converted


def _loaded(folder: Path, template: str | None) -> dict[str, bytes]:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise EngineStartError(f"{folder} needs `transformers` to make {TOKENIZER_FILE} of its tokenizer") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise EngineStartError(f"there is no tokenizer in {folder}: {error}") from error
    return of_tokenizer(tokenizer, template, name=str(folder))


def _lacks_tokens(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether another file has tokens that tokenizer.json lacks."""
    if "added_tokens_decoder" in config:
        added = [token["content"] for token in config["added_tokens_decoder"].values()]
    else:
        added = list(_object(folder / "added_tokens.json"))
    if not added:
        return False
    encoder = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    return any(encoder.token_to_id(token) is None for token in added)


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the default chat template, from the first place that has any."""
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    # Processors of models with images keep it here, and vLLM asks the processor first.
    legacy = _object(folder / "chat_template.json").get("chat_template")
    if legacy and not files:
        return str(legacy)
    if (folder / TEMPLATE_FILE).is_file():
        files.setdefault("default", folder / TEMPLATE_FILE)
    if files:
        return files["default"].read_text(encoding="utf-8") if "default" in files else None
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}.get("default")
    elif isinstance(template, dict):
        template = template.get("default")
    return str(template) if template else None


def _object(file: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one where there is no file."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"{file.name} is not a JSON object")
    return content
