"""The contract between a replica and its engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.control.step_model import StepSample
from cluster.models import EngineStats, GenerationSpec, ModelInfo, SequenceEnd, Windows
from penstock.models import PositionLogprobs


class TokenSink(Protocol):
    """Receives one sequence's output. Called on the engine's event loop, never blocks, never raises.

    A sink instead of a queue and an async generator: at a thousand tokens per millisecond-scale step the wake-up of a
    task per sequence costs more than the token.
    """

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        """Take new tokens, the text they released, and their log probabilities when asked for."""
        ...

    def on_end(self, end: SequenceEnd) -> None:
        """Learn that the sequence ended and its slot is free; called exactly once, last."""
        ...


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Is what an engine knows of itself once it is up."""

    model: ModelInfo
    group_id: str
    """Same weights, hardware, tensor parallel size and dtype: outputs are comparable inside a group only."""
    tensor_parallel_size: int
    hardware: str
    tokenizer_files: tuple[Path, ...]
    """tokenizer.json, tokenizer_config.json and a separate chat template where there is one."""
    windows: Windows
    """The largest windows; `set_batch_limits` moves `sequences` below its start value."""
    live_batch_limits: bool = True
    """False when the engine cannot hold a lowered limit itself; then only the replica's window keeps it."""
    resumes_penalties: bool = True
    """False when the engine refuses to go on with output under a presence or frequency penalty; see `ResumeRecord`."""


class Engine(Protocol):
    """Runs sequences of one model in a continuous batch.

    Life: `start` once, then anything, then `close` once. All methods belong to the loop that called `start`.
    """

    async def start(self) -> EngineIdentity:
        """Load the model and test the batch-limit hook; when it returns, `submit` works.

        Raises:
            EngineStartError: it did not come up; nothing is left running.
        """
        ...

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Start a sequence; output goes to `sink`. `sequence_id` is unique among live sequences.

        Raises:
            EngineRequestError: the engine refuses the request; the sink is never called.
            EngineDeadError: the engine is dead.
        """
        ...

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = "cancelled", *, release_text: bool = False
    ) -> None:
        """Stop sequences, with a `FinishReason` value of CANCELLED or DEADLINE.

        `release_text` sends what was held back for a stop string: nobody goes on with the output.
        Their sinks get `on_end` when the running step is over and the slot is really free; unknown ids are ignored.
        Returns after that.
        """
        ...

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        """Move the live limits (sequences in the batch, tokens per step) between steps; None keeps one.

        Lowering drains, it never preempts. Returns what is in force.
        """
        ...

    def stats(self) -> EngineStats:
        """Report the state; cheap, never blocks, ages to idle by itself."""
        ...

    def live_ids(self) -> Collection[str]:
        """Name the sequences that have not ended."""
        ...

    def take_steps(self) -> list[StepSample]:
        """Return the single steps since the last call, oldest first; the last few thousand at most, none while idle."""
        ...

    def share_clock(self) -> float:
        """Return the running total of step durations divided by the sequences in each step, in seconds."""
        ...

    async def check_health(self) -> None:
        """Ask the engine itself.

        Raises:
            EngineDeadError: it is dead or makes no progress although it has work.
        """
        ...

    async def close(self) -> None:
        """Stop everything; when it returns no process of the engine is left. May be called twice."""
        ...
