"""Bodies and answers of /v1/completions: one or several prompts, their echo, and log probabilities in lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from penstock.batch.logprobs import TextLogprobs, prompt_logprobs
from penstock.batch.output import unenforced_fields, usage_object
from penstock.models import PositionLogprobs
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.objects import BodyError, is_int, shown
from penstock.values.requests import prompt_to_proto
from penstock.values.results import Choice, Completion, Usage
from router.http.bodies import LAST_EVENT, Asked, read_request
from router.http.chunks import ChunkOptions, receipt_object

MAX_PROMPTS = 1_024
"""Most prompts of one request."""


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """One request for completions."""

    asked: Asked
    """The first prompt's, and what all have in common."""
    generates: tuple[api.GenerateRequest, ...]
    """One for each prompt."""
    echo: bool
    """Whether each text begins with its prompt."""
    echo_only: bool
    """Whether the texts end with their prompts."""
    logprobs: bool
    prompt_logprobs: bool
    """Whether log probabilities of the prompt are returned in vLLM's form."""

    @property
    def comes_back(self) -> bool:
        """Whether a client whose connection broke can come back to the stream: echoes and lists begin with it."""
        return (
            bool(self.asked.generate.idempotency_key) and len(self.generates) == 1 and not (self.echo or self.logprobs)
        )

    @property
    def n(self) -> int:
        """Number of choices of each prompt."""
        sampling = self.asked.generate.sampling
        return sampling.n if sampling.HasField("n") else 1

    def options(self) -> TextOptions:
        """Return what a stream needs of the request."""
        return TextOptions(
            shown=ChunkOptions.of(self.asked, event_ids=self.comes_back),
            prompts=len(self.generates),
            n=self.n,
            echo=self.echo,
            echo_only=self.echo_only,
            logprobs=self.logprobs,
        )


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What a client wants to see in a stream of completions."""

    shown: ChunkOptions
    prompts: int
    """Number of prompts."""
    n: int
    """Number of choices of each."""
    echo: bool
    """Whether each text begins with its prompt."""
    echo_only: bool
    """Whether the texts end with their prompts."""
    logprobs: bool


def read_completions(body: Mapping[str, Any], headers: Mapping[str, str]) -> AskedTexts:
    """Translate a body.

    Raises:
        BodyError: names the field that can't be served as written.
    """
    fields = dict(body)
    prompts = _prompts(fields.get("prompt"))
    echo = fields.pop("echo", None)
    if echo is not None and not isinstance(echo, bool):
        raise BodyError("echo", f"must be true or false, got {shown(echo)}")
    # An engine makes one token at least, which is dropped.
    echo_only = bool(echo) and is_int(fields.get("max_tokens")) and fields["max_tokens"] == 0
    if echo_only:
        fields["max_tokens"] = 1
    by_name = fields.get("prompt_logprobs") is not None
    if by_name and fields.get("stream"):
        raise BodyError("prompt_logprobs", "must be absent where stream is true")
    if echo and not by_name:
        fields["prompt_logprobs"] = fields.get("logprobs")
    asked = read_request({**fields, "prompt": prompts[0]}, headers, chat=False)
    if echo and not by_name:
        asked = replace(asked, names={**asked.names, "sampling.prompt_logprobs": "logprobs"})
    found = AskedTexts(
        asked=asked,
        generates=tuple(_generates(asked.generate, prompts)),
        echo=bool(echo),
        echo_only=echo_only,
        logprobs=asked.generate.sampling.HasField("logprobs"),
        prompt_logprobs=by_name,
    )
    if asked.received is not None and not found.comes_back:
        raise BodyError(LAST_EVENT, "goes with one prompt, without echo and logprobs, only")
    return found


def _prompts(given: Any) -> Sequence[Any]:
    if not isinstance(given, list) or all(is_int(each) for each in given):
        # One text, one list of ids, or nothing that is a prompt.
        return [given]
    if len(given) > MAX_PROMPTS:
        raise BodyError("prompt", f"must have at most {MAX_PROMPTS} prompts, got {len(given)}")
    for index, each in enumerate(given):
        if not isinstance(each, str) and not (isinstance(each, list) and each and all(map(is_int, each))):
            raise BodyError(f"prompt[{index}]", f"must be one text or one list of token ids, got {shown(each)}")
    return given


def _generates(first: api.GenerateRequest, prompts: Sequence[Any]) -> list[api.GenerateRequest]:
    if len(prompts) == 1:
        return [first]
    found = []
    for index, prompt in enumerate(prompts):
        generate = api.GenerateRequest()
        generate.CopyFrom(first)
        try:
            generate.prompt.CopyFrom(prompt_to_proto(prompt))
        except ValueError as error:
            raise BodyError(f"prompt[{index}]", str(error)) from None
        if first.idempotency_key:
            # Each prompt is a request of its own.
            generate.idempotency_key = f"{first.idempotency_key}/{index}"
        found.append(generate)
    return found


@dataclass(frozen=True, slots=True)
class Echo:
    """Prompt at the beginning of a text."""

    text: str
    """The prompt; empty where it is not echoed."""
    positions: Sequence[PositionLogprobs] = ()
    """Log probabilities of the prompt; empty where they are not echoed."""

    @property
    def leading(self) -> int:
        """Number of characters of the first tokens that the text leaves out: special tokens, and the space that some
        tokenizers put before the first word.
        """
        tokens = b"".join(position.chosen.token_bytes for position in self.positions).decode(errors="replace")
        return len(tokens) - len(self.text) if self.text and tokens.endswith(self.text) else 0


def answer(asked: AskedTexts, echoes: Sequence[str], replies: Sequence[api.GenerateResponse]) -> dict[str, Any]:
    """Return a whole answer, without the fields that it shares with chunks.

    Args:
        asked: the request.
        echoes: text of each prompt; empty where it is not echoed.
        replies: one for each prompt.
    """
    completions = [Completion.from_proto(reply) for reply in replies]
    choices = []
    for prompt, (completion, text) in enumerate(zip(completions, echoes, strict=True)):
        echo = Echo(text, completion.prompt_logprobs if asked.echo else ())
        more = {"prompt_logprobs": prompt_logprobs(completion.prompt_logprobs)} if asked.prompt_logprobs else {}
        choices += [
            {**_choice(asked, echo, choice), "index": prompt * asked.n + choice.index, **more}
            for choice in completion.choices
        ]
    usage = usage_object(sum_of([completion.usage for completion in completions]))
    if asked.asked.receipt:
        usage |= receipts_object([reply.receipt for reply in replies])
    return {
        "id": f"cmpl-{completions[0].request_id}",
        "object": "text_completion",
        "choices": choices,
        "usage": usage,
        # All prompts have the same schema.
        **unenforced_fields(completions[0].unenforced),
    }


def _choice(asked: AskedTexts, echo: Echo, choice: Choice) -> dict[str, Any]:
    logprobs = None
    if asked.logprobs:
        lists = TextLogprobs(as_ids=asked.asked.tokens_as_ids, leading=echo.leading)
        logprobs = lists.lists(echo.positions, prompt=True)
        if not asked.echo_only:
            logprobs = {name: logprobs[name] + values for name, values in lists.lists(choice.logprobs).items()}
    found: dict[str, Any] = {
        "index": choice.index,
        "text": echo.text if asked.echo_only else echo.text + choice.text,
        "logprobs": logprobs,
        "finish_reason": "length" if asked.echo_only else choice.finish_reason.value,
    }
    if asked.asked.token_ids:
        found["token_ids"] = [] if asked.echo_only else list(choice.token_ids)
    return found


def receipts_object(receipts: Sequence[types.Receipt]) -> dict[str, Any]:
    """Return the receipt of one prompt as `receipt`, or those of several as `receipts`."""
    shown = [receipt_object(receipt) for receipt in receipts]
    return {"receipt": shown[0]} if len(shown) == 1 else {"receipts": shown}


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Return the usage of several requests together."""
    return Usage(*map(sum, zip(*map(astuple, usages), strict=True)))
