"""What our side of vLLM does with the output of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec
from penstock.models import FinishReason, SamplingParams
from tests.deployments.engines.recorder import Recorder

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # Of the libraries that vLLM imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Text:
    """One sequence's text; one that is broken raises as a tokenizer's library may."""

    match = ""

    def __init__(self, *, broken: bool) -> None:
        self.broken = broken

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        if self.broken:
            raise ValueError("no such token")
        return "x"


class Owner:
    """Hears what the engine would."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.steps = self.preempted = 0

    def share_at(self, moment: float) -> float:
        return 0.0

    def on_first_token(self, sequence: Any) -> None:
        pass

    def on_scheduled(self, moment: float) -> float:
        return 0.0

    def on_preempted(self) -> None:
        self.preempted += 1

    def on_output_end(self, sequence: Any) -> None:
        self.ended.append(sequence.sequence_id)

    def on_step(self, stats: Any, ended_at: float) -> None:
        self.steps += 1

    def on_death(self, error: Exception) -> None:
        raise AssertionError(error)


async def test_text_that_cannot_be_made_ends_its_own_sequence() -> None:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    from deployments.engines.vllm.adapter import Frontend
    from deployments.engines.vllm.sequence import VllmSequence

    owner, recorders = Owner(), {name: Recorder() for name in ("first", "broken", "last")}
    frontend = object.__new__(Frontend)
    frontend._events, frontend._sequences = owner, {}
    for name, recorder in recorders.items():
        spec = GenerationSpec([1, 2], SamplingParams(max_tokens=8))
        sequence = VllmSequence(name, spec, recorder, owner, arrived_at=1.0)
        sequence.text = Text(broken=name == "broken")
        frontend._sequences[name] = sequence
    broken = frontend._sequences["broken"]

    for _ in range(2):
        outputs = [EngineCoreOutput(request_id=name, new_token_ids=[5]) for name in recorders]
        frontend._deliver(EngineCoreOutputs(outputs=outputs, timestamp=2.0))

    assert ([5, 5], [], [5, 5]) == tuple(recorder.tokens for recorder in recorders.values())
    assert (["broken"], 2) == (owner.ended, owner.steps)
    assert (FinishReason.ERROR, False) == (broken.finish_reason, broken.left_engine)


async def test_a_preemption_is_told_with_the_first_output_after_it() -> None:
    from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs

    from deployments.engines.vllm.adapter import Frontend
    from deployments.engines.vllm.sequence import VllmSequence

    owner = Owner()
    frontend = object.__new__(Frontend)
    sequence = VllmSequence("one", GenerationSpec([1, 2], SamplingParams(max_tokens=8)), Recorder(), owner, 1.0)
    sequence.text = Text(broken=False)
    frontend._events, frontend._sequences = owner, {"one": sequence}
    kinds = (EngineCoreEventType.SCHEDULED, EngineCoreEventType.PREEMPTED, EngineCoreEventType.SCHEDULED)
    events = [EngineCoreEvent(type=kind, timestamp=1.0 + number) for number, kind in enumerate(kinds)]
    output = EngineCoreOutput(request_id="one", new_token_ids=[5], events=events)
    frontend._deliver(EngineCoreOutputs(outputs=[output], timestamp=5.0))

    assert (1, None) == (owner.preempted, sequence.finish_reason)
    assert 1.0 == sequence.scheduled_at


class Core:
    """Takes what goes to the engine process."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def add_request_async(self, request: Any) -> None:
        self.sent.append(f"add {request.request_id}")

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.sent.extend(f"abort {each}" for each in request_ids)


async def test_a_prompt_that_the_tokenizer_fails_on_leaves_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has it by then: it begins while the text is prepared."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    from deployments.engines.vllm import adapter
    from deployments.engines.vllm.sequence import VllmSequence

    def fail(tokenizer: Any, request: Any) -> None:
        raise ValueError("no such token")

    monkeypatch.setattr(IncrementalDetokenizer, "from_new_request", fail)
    frontend, core = object.__new__(adapter.Frontend), Core()
    params = SimpleNamespace(skip_special_tokens=True, spaces_between_special_tokens=True)
    request = SimpleNamespace(request_id="one-internal", sampling_params=params, pooling_params=None)
    processor = SimpleNamespace(process_inputs=lambda *_, **__: request, assign_request_id=lambda _: None)
    output = SimpleNamespace(tokenizer=None)
    frontend.llm = SimpleNamespace(input_processor=processor, engine_core=core, output_processor=output)
    frontend._sequences, frontend._tasks, frontend.reasons = {}, ("generate",), False
    sequence = VllmSequence("one", GenerationSpec([1, 2], SamplingParams(max_tokens=8)), Recorder(), Owner(), 1.0)

    with pytest.raises(EngineRequestError, match="the tokenizer failed on it: no such token"):
        await frontend.add(
            sequence, [1, 2], (), SimpleNamespace(stop=[]), lora=None, cache_salt=None, delivered_characters=0
        )

    assert ["add one-internal", "abort one-internal"] == core.sent
    assert not frontend._sequences
