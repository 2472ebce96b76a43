"""The requests of the benchmark, and the correct answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from loadtest.benchmarks.cancel.testbed import POOL
from penstock.v1 import inference_pb2 as api
from penstock.v1 import inference_pb2_grpc
from penstock.v1 import types_pb2 as types

MAX_TOKENS = 150
PROMPTS = 16
LONG_PROMPT = 1_500
"""Tokens of a prompt whose prefill takes some steps."""


def stub(channel: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(channel)


def generation(prompt: types.Prompt, key: str = "", max_tokens: int = MAX_TOKENS) -> api.GenerateRequest:
    """Build a greedy request that no end of text shortens."""
    sampling = types.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return api.GenerateRequest(model=POOL, prompt=prompt, sampling=sampling, idempotency_key=key)


def streamed(*args: Any, **options: Any) -> api.StreamGenerateRequest:
    """Build a streamed request with the arguments of `generation`."""
    return api.StreamGenerateRequest(generate=generation(*args, **options))


def fresh_prompt(draw: random.Random, tokens: int = LONG_PROMPT) -> types.Prompt:
    """Draw a prompt that is in no cache."""
    return types.Prompt(tokens=types.TokenPrompt(ids=draw.choices(range(3, 250), k=tokens)))


@dataclass(frozen=True, slots=True)
class Reference:
    """Prompts with their full outputs. Every delta of a storm must be a part of the output of its own prompt."""

    prompts: Sequence[types.Prompt]
    outputs: Sequence[Sequence[int]]

    @classmethod
    async def make(cls, inference: Any) -> Reference:
        """Generate each output once, without other load."""
        prompts = [types.Prompt(text=f"Question {number}: what is a penstock?") for number in range(PROMPTS)]
        replies = await asyncio.gather(*(inference.Generate(generation(prompt)) for prompt in prompts))
        return cls(prompts, [list(reply.choices[0].token_ids) for reply in replies])

    def fits(self, number: int, delta: api.Delta) -> bool:
        """Return whether a delta belongs to this prompt."""
        end = delta.offset + len(delta.token_ids)
        return list(delta.token_ids) == self.outputs[number][delta.offset : end]
