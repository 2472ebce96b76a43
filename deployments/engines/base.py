"""The contract between a replica and its engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cluster.control.step_model import StepSample
from cluster.models import EngineStats, GenerationSpec, Judgement, ModelInfo, PromptLogprobs, SequenceEnd, Windows
from penstock.models import OutputParsing, ParsedDelta, PositionLogprobs, StructuredOutput


class OutputParser(Protocol):
    """Parser of one sequence's output into text, reasoning and tool calls. Output comes in order.

    After the same output, however it was cut, the pieces together are the same, and so is what follows.
    """

    @property
    def short_call_ids(self) -> bool:
        """Whether the model's chat template takes only ids of nine letters and digits for tool calls."""
        ...

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        """Take new output and return what it adds; None for nothing. Ids of tool calls are empty.

        After `last` nothing follows: what was held back comes out. It must not raise.
        """
        ...

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count the reasoning in the whole output, in tokens."""
        ...


class TokenSink(Protocol):
    """Receiver of one sequence's output. Called on the engine's event loop; must not block or raise.

    It is no queue with an async generator: at a thousand tokens per step of a few milliseconds, waking one task per
    sequence costs more than the token.
    """

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Take the log probabilities of the prompt if asked for. Called once, before the first token."""
        ...

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        """Take new tokens, the text that they released, and their log probabilities if asked for."""
        ...

    def on_end(self, end: SequenceEnd) -> None:
        """Take the end of the sequence, whose slot is free now. Called exactly once, as the last call."""
        ...


@runtime_checkable
class ParsingSink(TokenSink, Protocol):
    """Receiver that parses the output of sequences whose spec has `parsing`."""

    def on_parser(self, parser: OutputParser) -> None:
        """Parse the output with this new parser. Called before any output, by engines that have parsers."""
        ...


@runtime_checkable
class AdapterSink(TokenSink, Protocol):
    """Receiver that wants to know the files of its sequence's adapter."""

    def on_adapter(self, files: str) -> None:
        """Take the name that stands for the files. Called before any output, for sequences with an adapter."""
        ...


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Facts about an engine that has started."""

    model: ModelInfo
    group_id: str
    """Id of weights, hardware, tensor parallel size and dtype. Outputs are comparable only inside one group."""
    tensor_parallel_size: int
    hardware: str
    tokenizer_files: Mapping[str, bytes] = field(repr=False)
    """Content of the files that routers need to tokenize, by name."""
    windows: Windows
    """Largest windows. `set_batch_limits` moves `sequences` below its start value."""
    live_batch_limits: bool = True
    """Whether the engine itself can hold a lowered limit. If not, only the replica's window holds it."""
    resumes_penalties: bool = True
    """Whether the engine can continue output that has a presence or frequency penalty. See `ResumeRecord`."""
    sleeps: bool = False
    """Whether `sleep` frees the accelerators' memory. An engine that can't sleep stands by as it is."""


class SequenceEngine(Protocol):
    """The part of an engine that attempts use."""

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None: ...
    async def abort(
        self, sequence_ids: Sequence[str], reason: str = "cancelled", *, release_text: bool = False
    ) -> None: ...
    def live_ids(self) -> Collection[str]: ...


class Engine(SequenceEngine, Protocol):
    """Runner of one model's sequences in a continuous batch.

    Life: `start` once, then any other calls, then `close` once. All methods belong to the loop that called `start`.
    """

    async def start(self) -> EngineIdentity:
        """Load the model and test the batch-limit hook. When it returns, `submit` works.

        Raises:
            EngineStartError: the engine did not start. Nothing is left running.
        """
        ...

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Start a sequence whose output goes to `sink`. `sequence_id` is unique among live sequences.

        The images of a prompt may be read after the return. Where that fails, the sequence ends, as an invalid request.

        Raises:
            EngineRequestError: the engine refuses the request; the sink is never called.
            EngineDeadError: the engine is dead.
        """
        ...

    async def judge(self, constraint: StructuredOutput) -> Judgement:
        """Return what the engine's compiler says of a constraint.

        Raises:
            EngineDeadError: the engine is dead.
        """
        ...

    async def judge_calls(self, parsing: OutputParsing, structured: StructuredOutput | None) -> Judgement:
        """Return whether a sequence can be held to the calls of tools that it demands, beside a constraint.

        Raises:
            EngineDeadError: the engine is dead.
        """
        ...

    async def expand_images(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return the tokens that images of these widths and heights become in one prompt. They depend on nothing else.

        Raises:
            EngineRequestError: the model can't take these images.
            EngineDeadError: the engine is dead.
        """
        ...

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, for sequences that start from now on. A name that is loaded is an error.

        Its folder must stay as it is until the adapter is unloaded: an engine may read it again.

        Raises:
            EngineRequestError: the engine can't load it. It is as if it had never been asked for.
            EngineDeadError: the engine is dead.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter that no live sequence uses. An unknown name is ignored.

        Raises:
            EngineDeadError: the engine is dead.
        """
        ...

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = "cancelled", *, release_text: bool = False
    ) -> None:
        """Stop sequences, with a `FinishReason` value of CANCELLED or DEADLINE. Unknown ids are ignored.

        Each sink gets `on_end` when the running step is over and the slot is really free. The call returns after that.
        `release_text` also sends the text that was held back for a stop string, for output that will not be continued.
        """
        ...

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        """Move the live limits (sequences in the batch, tokens per step) between steps. None keeps one.

        A lower limit drains the batch and never preempts. Return the limits in force.
        """
        ...

    async def sleep(self) -> None:
        """Free the accelerators' memory until `wake`. Only for an engine that `sleeps` and has no live sequence.

        Until then nothing may be submitted. Adapters that are loaded or unloaded meanwhile wait for it.

        Raises:
            EngineDeadError: the engine is dead, or failed to sleep.
        """
        ...

    async def wake(self) -> None:
        """Take the memory back, with the weights in it. When it returns, `submit` works. An engine that is awake stays
        so.

        Raises:
            EngineDeadError: the engine is dead, or did not come back.
        """
        ...

    def stats(self) -> EngineStats:
        """Return the current state. Cheap and never blocks. An engine without work reports itself as idle."""
        ...

    def live_ids(self) -> Collection[str]:
        """Return the ids of the sequences that have not ended."""
        ...

    def take_steps(self) -> list[StepSample]:
        """Return the single steps since the last call, oldest first: at most the last few thousand, and none while
        idle.
        """
        ...

    async def check_health(self) -> None:
        """Check that the engine is alive and makes progress.

        Raises:
            EngineDeadError: it is dead, or makes no progress although it has work.
        """
        ...

    async def close(self) -> None:
        """Stop everything. When it returns, no process of the engine is left. May be called twice."""
        ...
