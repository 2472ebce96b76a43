"""The feeder's decisions: what is to do, and what a failure means."""

from __future__ import annotations

import pytest

from cluster.errors import (
    CancelledError,
    GenerationFailedError,
    InvalidRequestError,
    JobLimitError,
    ModelChangedError,
    ModelNotFoundError,
    NoReplicaError,
    PenstockError,
    QueueFullError,
    QueueUnavailableError,
)
from cluster.jobs.contract import Backlog
from penstock.v1.embeddings_pb2 import EmbedRequest, PoolingInput
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.jobs_pb2 import JobItem
from penstock.v1.types_pb2 import Prompt, SamplingParams, TokenPrompt
from router.jobs.lines import names_ids
from router.jobs.plan import BlockPlan, plan
from router.jobs.verdict import Again, Final, judge
from router.status import to_rpc_status


def test_a_fresh_job_is_all_to_do() -> None:
    assert [BlockPlan(0, 0, [0, 1, 2]), BlockPlan(1, 3, [3])] == list(plan(Backlog((3, 1), b"")))


def test_done_items_and_whole_done_blocks_are_left_out() -> None:
    # Items 0, 1, 2 and 9 have results.
    backlog = Backlog((3, 5, 4), b"\xe0\x40")
    assert [BlockPlan(1, 3, [3, 4, 5, 6, 7]), BlockPlan(2, 8, [8, 10, 11])] == list(plan(backlog))


def test_nothing_is_to_do_when_all_is_done() -> None:
    assert [] == list(plan(Backlog((3,), b"\xe0")))
    assert [] == list(plan(Backlog((), b"")))


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (QueueFullError("demo", 10, 2.5), Again(2.5, counted=False)),
        (QueueFullError("demo", 10, 3_600.0), Again(60.0, counted=False)),
        (QueueUnavailableError("no answer"), Again(1.0, counted=False)),
        (NoReplicaError("none yet", 2.0), Again(2.0, counted=False)),
        (GenerationFailedError("r", 3), Again(0.5, counted=True)),
        (PenstockError("a bug"), Again(0.5, counted=True)),
        (InvalidRequestError.of("prompt", "too long"), Final()),
        (ModelNotFoundError("x", ()), Final()),
        (CancelledError(), Final()),
        # Exhausted without a time to come back: no wait helps.
        (JobLimitError("max_jobs", 1), Final()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals_for_now_never_count_failures_do_and_the_rest_is_final(
    error: PenstockError, verdict: Again | Final
) -> None:
    assert verdict == judge(to_rpc_status(error))


@pytest.mark.parametrize(
    ("item", "verdict"),
    [
        (JobItem(request=GenerateRequest(prompt=Prompt(text="a"))), Again(1.0, counted=False)),
        (JobItem(request=GenerateRequest(prompt=Prompt(tokens=TokenPrompt(ids=[1])))), Final()),
        (JobItem(request=GenerateRequest(sampling=SamplingParams(stop_token_ids=[1]))), Final()),
        (JobItem(request=GenerateRequest(sampling=SamplingParams(logit_bias={1: 2.0}))), Final()),
        (JobItem(embed=EmbedRequest(inputs=[PoolingInput(text="a")])), Again(1.0, counted=False)),
        (JobItem(embed=EmbedRequest(inputs=[PoolingInput(tokens=TokenPrompt(ids=[1]))])), Final()),
    ],
)
def test_token_ids_do_not_run_again_on_a_model_that_reads_them_as_another_text(
    item: JobItem, verdict: Again | Final
) -> None:
    assert verdict == judge(to_rpc_status(ModelChangedError("r")), names_ids=names_ids(item))
