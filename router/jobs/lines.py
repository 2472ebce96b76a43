"""Items of a job on a file: lines of OpenAI's batch format, kept byte for byte as they were uploaded. Pure."""

from __future__ import annotations

import json

from cluster.errors import InvalidRequestError
from cluster.jobs.ids import file_of
from penstock.batch.encoding import ESCAPED
from penstock.batch.input import BatchFileError, Endpoints, read_line
from penstock.models import ModelTask
from penstock.v1 import embeddings_pb2, inference_pb2
from penstock.v1 import jobs_pb2 as api


def read_item(job_id: str, body: bytes, endpoints: Endpoints) -> tuple[api.JobItem, str]:
    """Read a stored item of a job, and the fields of it that its answer repeats.

    Args:
        job_id: the job's.
        body: the item.
        endpoints: readers of lines of a file.

    Raises:
        InvalidRequestError: the line can't be served. It was checked when it was uploaded, but perhaps by a router of
            another version.
    """
    if not file_of(job_id):
        return api.JobItem.FromString(body), ""
    try:
        line = read_line(body.decode(errors=ESCAPED), 1, ignore_unknown=True, endpoints=endpoints)
        return line.item.to_proto(), line.repeated
    except BatchFileError as error:
        raise InvalidRequestError.of(error.field, error.problem) from None
    except (TypeError, ValueError) as error:
        raise InvalidRequestError.of("body", str(error)) from None


def request_of(item: api.JobItem) -> inference_pb2.GenerateRequest | embeddings_pb2.EmbedRequest:
    """Return what an item asks for."""
    return item.embed if item.HasField("embed") else item.request


def task_problem(item: api.JobItem, model: str, task: ModelTask | None) -> str:
    """Return what a model's task, where it is known, has against an item; empty for nothing."""
    needed = ModelTask.EMBED if item.HasField("embed") else ModelTask.GENERATE
    if task in (None, needed):
        return ""
    return f"needs a model with the task {needed.value!r}, and {model!r} has {task.value!r}"


def names_ids(item: api.JobItem) -> bool:
    """Return whether an item has token ids of its tenant, which mean another text to another tokenizer."""
    if item.HasField("embed"):
        return any(each.HasField("tokens") for each in item.embed.inputs)
    sampling = item.request.sampling
    return item.request.prompt.HasField("tokens") or bool(sampling.stop_token_ids or sampling.logit_bias)


def name_of(body: bytes) -> str:
    """Return the custom_id of a line; empty if it has none."""
    try:
        line = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    name = line.get("custom_id") if isinstance(line, dict) else None
    return name if isinstance(name, str) else ""
