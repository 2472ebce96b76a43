"""Each call as a value: its method, its request and the conversion of its answer. Both clients run these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from penstock.client.connection import Stubs
from penstock.v1 import inference_pb2, jobs_pb2
from penstock.values.chat import CHAT_NAMES, ChatOptions
from penstock.values.fields import build, duration_field, unfit
from penstock.values.jobs import Job, JobPage, Upload
from penstock.values.requests import GenerateOptions, Prompt, ResumePoint, count_to_proto, request_to_proto
from penstock.values.results import Completion, ModelDescription, TokenCount
from penstock.values.sampling import Sampling, sampling_of

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[Result]):
    """A call with one answer."""

    method: Callable[[Stubs], Any]
    request: Any
    convert: Callable[[Any], Result]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks to be generated."""

    model: str
    prompt: Prompt
    sampling: Sampling | Mapping[str, Any] | None
    options: GenerateOptions | None
    keywords: Mapping[str, Any]
    """Sampling parameters and options of a conversation by name; they win over `sampling` and `options`."""

    def request(self, *others: str) -> inference_pb2.GenerateRequest:
        """Build the request.

        Args:
            others: further arguments of the client's method, which a misspelt keyword may mean.

        Raises:
            TypeError: a value is of another type, or there is no parameter of a name; names it.
            ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
        """
        chat = {name: value for name, value in self.keywords.items() if name in CHAT_NAMES}
        sampled = {name: value for name, value in self.keywords.items() if name not in CHAT_NAMES}
        sampling = sampling_of(self.sampling, sampled, {**_ELSEWHERE, **{name: name for name in others}})
        options = self.options
        if chat and (options is None or isinstance(options, GenerateOptions)):
            options = replace(options or GenerateOptions(), **chat)
        return request_to_proto(self.model, self.prompt, sampling, options)


_ELSEWHERE = {
    **{each.name: f"options=GenerateOptions({each.name}=...)" for each in fields(GenerateOptions)},
    "messages": "the messages as `prompt`",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "response_format": "structured=json_schema(...)",
    "template_kwargs": "chat_template_kwargs",
    "functions": "tools",
    **{name: name for name in ("prompt", "sampling", "options", "timeout", *CHAT_NAMES)},
}
"""Names that a caller may take for sampling parameters, and what an error says instead."""


def generate(asked: Asked) -> UnaryCall[Completion]:
    request = asked.request()
    return UnaryCall(lambda stubs: stubs.inference.Generate, request, Completion.from_proto)


def rest_of(call: UnaryCall[Completion], token: bytes) -> inference_pb2.StreamGenerateRequest:
    """Return the request of the stream that continues a generation whose call broke."""
    return inference_pb2.StreamGenerateRequest(generate=call.request, resume=inference_pb2.Resume(resume_token=token))


def cancel(request_id: str, idempotency_key: str) -> UnaryCall[str]:
    """Return the Cancel call.

    Raises:
        ValueError: both names are given, or none.
    """
    if bool(request_id) == bool(idempotency_key):
        raise ValueError("give exactly one of request_id and idempotency_key")
    names = {"request_id": request_id} if request_id else {"idempotency_key": idempotency_key}
    request = build(inference_pb2.CancelRequest, **names)
    return UnaryCall(lambda stubs: stubs.inference.Cancel, request, lambda answer: str(answer.request_id))


def list_models() -> UnaryCall[tuple[ModelDescription, ...]]:
    return UnaryCall(
        lambda stubs: stubs.inference.ListModels,
        inference_pb2.ListModelsRequest(),
        lambda answer: tuple(map(ModelDescription.from_proto, answer.models)),
    )


def get_model(model: str) -> UnaryCall[ModelDescription]:
    return UnaryCall(
        lambda stubs: stubs.inference.GetModel,
        build(inference_pb2.GetModelRequest, model=model),
        lambda answer: ModelDescription.from_proto(answer.model),
    )


def count_tokens(model: str, prompt: Prompt, options: Mapping[str, Any]) -> UnaryCall[TokenCount]:
    """Return the CountTokens call.

    Raises:
        TypeError: there is no option of a name, or a value has another type.
    """
    for name in options:
        if name not in CHAT_NAMES:
            raise TypeError(f"there is no option {name!r}; options are {', '.join(CHAT_NAMES)}")
    request = count_to_proto(model, prompt, ChatOptions(**options))
    return UnaryCall(lambda stubs: stubs.inference.CountTokens, request, TokenCount.from_proto)


def detokenize(model: str, token_ids: Sequence[int]) -> UnaryCall[str]:
    request = build(inference_pb2.DetokenizeRequest, model=model, token_ids=token_ids)
    return UnaryCall(lambda stubs: stubs.inference.Detokenize, request, lambda answer: str(answer.text))


def stream_request(
    asked: Asked, flush_interval: float | None, resume: ResumePoint | None
) -> inference_pb2.StreamGenerateRequest:
    """Build the request of a stream. `flush_interval` is in seconds; None leaves it to the router.

    Raises:
        TypeError: a value is of another type, or there is no parameter of a name; names it.
        ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
    """
    request = inference_pb2.StreamGenerateRequest(generate=asked.request("flush_interval", "resume"))
    if flush_interval is not None:
        request.flush_interval.CopyFrom(duration_field("flush_interval", flush_interval))
    if resume is not None:
        if not isinstance(resume, ResumePoint):
            raise unfit("resume", "a ResumePoint", resume)
        point = {"resume_token": resume.token, "received_tokens": resume.received_tokens}
        request.resume.CopyFrom(build(inference_pb2.Resume, "resume.", **point))
    return request


def submit_job(upload: Upload) -> UnaryCall[Job]:

    def method(stubs: Stubs) -> Any:
        # An attempt needs an iterator of its own.
        return lambda request, **options: stubs.jobs.SubmitJob(iter(request), **options)

    return UnaryCall(method, upload, lambda answer: Job.from_proto(answer.job, existed=answer.existed))


def get_job(job_id: str) -> UnaryCall[Job]:
    request = build(jobs_pb2.GetJobRequest, job_id=job_id)
    return UnaryCall(lambda stubs: stubs.jobs.GetJob, request, lambda answer: Job.from_proto(answer.job))


def list_jobs(page_size: int, page_token: str) -> UnaryCall[JobPage]:
    request = build(jobs_pb2.ListJobsRequest, page_size=page_size, page_token=page_token)
    return UnaryCall(lambda stubs: stubs.jobs.ListJobs, request, JobPage.from_proto)


def cancel_job(job_id: str) -> UnaryCall[Job]:
    request = build(jobs_pb2.CancelJobRequest, job_id=job_id)
    return UnaryCall(lambda stubs: stubs.jobs.CancelJob, request, lambda answer: Job.from_proto(answer.job))


def delete_job(job_id: str) -> UnaryCall[None]:
    request = build(jobs_pb2.DeleteJobRequest, job_id=job_id)
    return UnaryCall(lambda stubs: stubs.jobs.DeleteJob, request, lambda _answer: None)
