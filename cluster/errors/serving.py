"""Errors of the running cluster: what may pass, and what failed."""

from __future__ import annotations

from typing import Self

from cluster.errors.root import PenstockError
from cluster.plural import counted


class UnavailableError(PenstockError):
    """A request that the cluster cannot take now but may take soon."""

    reason = "UNAVAILABLE"
    remedy = "Try again after the time in the error's `RetryInfo`, at any router."

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class QueueUnavailableError(UnavailableError):
    """Failure of Redis to answer."""

    reason = "QUEUE_UNAVAILABLE"
    remedy = (
        "Try again after the time in the error's `RetryInfo`. Operators: check that Redis runs and that routers "
        "reach it."
    )


class IssuerUnavailableError(UnavailableError):
    """A token whose key this router can't check yet, because it is still to be fetched from the issuer."""

    reason = "ISSUER_UNAVAILABLE"
    remedy = (
        "Try again after the time in the error's `RetryInfo`. Operators: check that routers reach the issuer; they "
        "log `issuer.away`."
    )

    def __init__(self, issuer: str, retry_after_s: float) -> None:
        self.issuer = issuer
        super().__init__("the key of this token has to be fetched from its issuer first; try again", retry_after_s)


class ModelChangedError(UnavailableError):
    """A request that waited while its pool got a model with another tokenizer, in which its ids mean another text.
    Nothing was delivered.
    """

    reason = "MODEL_CHANGED"
    remedy = (
        "Send the request anew. It never ran, so its resume token is useless. Token ids, `stop_token_ids` and "
        "`logit_bias` must be those of the new model's tokenizer; the Python client leaves that to you."
    )

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"the pool's model changed while {request_id} waited; send it again for the new one")


class NoReplicaError(UnavailableError):
    """A pool of which no replica has ever reported, so that the prompt cannot be tokenized; a router that reaches none
    of the replicas that take work; or what is left in a pool that was removed.
    """

    reason = "NO_REPLICA"
    remedy = (
        "Try again after the time in the error's `RetryInfo`. Operators: `penstock status` shows each pool's replicas."
    )

    @classmethod
    def removed(cls, pool: str) -> NoReplicaError:
        """Return the error of what is left in a pool that was removed."""
        return cls(f"pool {pool!r} was removed, and its replicas have gone", 5.0)


class ShuttingDownError(UnavailableError):
    """A process that is draining."""

    reason = "SHUTTING_DOWN"
    remedy = "Try again at another router."


class LeadershipLostError(PenstockError):
    """A write that only the leader may do, tried by an autoscaler that no longer leads."""

    reason = "LEADERSHIP_LOST"
    remedy = "Nothing. The autoscaler that leads now continues."

    def __init__(self, pool: str, fence: int) -> None:
        self.pool = pool
        self.fence = fence
        super().__init__(f"pool {pool!r} is led by another autoscaler than the one of fence {fence}")


class ActuatorError(PenstockError):
    """Failure to read or set the number of replicas."""

    reason = "ACTUATOR"
    remedy = "Check that Ray Serve's API answers. The autoscaler tries again at its next step."

    def __init__(self, pool: str, detail: str) -> None:
        self.pool = pool
        self.detail = detail
        super().__init__(f"replicas of pool {pool!r}: {detail}")


class JobLeaseLostError(PenstockError):
    """A feeder's loss of its job, which has another feeder, has ended, or is gone."""

    reason = "JOB_LEASE_LOST"
    remedy = "Nothing. Another router feeds the job, or it has ended."

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is not fed from here any more")


class GenerationFailedError(PenstockError):
    """A request that could not continue: its engine failed, its output can't satisfy its constraint, or its client came
    back too late.
    """

    reason = "GENERATION_FAILED"
    remedy = "Send the request anew. The error says how many tokens were delivered."

    def __init__(
        self, request_id: str, delivered_tokens: int, attempts: int = 1, prompt_tokens: int = 0, detail: str = ""
    ) -> None:
        """`delivered_tokens` and `prompt_tokens` are the usage so far; `attempts` is the number of lost ones, 0 where
        no engine failed. `detail` is the reason why the request could not continue; empty where it is not known.
        """
        self.request_id = request_id
        self.delivered_tokens = delivered_tokens
        self.attempts = attempts
        self.prompt_tokens = prompt_tokens
        self.detail = detail
        after = counted(delivered_tokens, "token")
        if attempts:
            message = f"the engine failed after {after} of request {request_id}; attempts lost: {attempts}"
        else:
            message = f"request {request_id} can't go on after {after}"
        super().__init__(message + (f"; {detail}" if detail else ""))

    @classmethod
    def gone(cls, request_id: str, delivered_tokens: int, kept_s: float) -> Self:
        """Return the error of a client that comes back to output which is gone.

        Args:
            request_id: the request.
            delivered_tokens: tokens that the client has.
            kept_s: `queue.attach_grace_s`.
        """
        detail = (
            f"its output is gone: it is kept for {kept_s:g} s (queue.attach_grace_s) without its client, and with the "
            "router while the request waits for another replica"
        )
        return cls(request_id, delivered_tokens, 0, detail=detail)


class LinkError(PenstockError):
    """Failure of the stream between a router and a replica."""

    reason = "LINK"
    remedy = "Read the router's log. It connects again by itself."


class LinkRefusedError(LinkError):
    """A peer that does not know the cluster secret or speaks no common version."""

    reason = "LINK_REFUSED"
    remedy = "Give routers and replicas the same cluster secret and TLS settings, and releases that follow each other."


class LinkLostError(LinkError):
    """A peer that is gone or silent."""

    reason = "LINK_LOST"
    remedy = "Look whether the replica still runs. The router connects again by itself."


class GeneratorError(PenstockError):
    """A load generator that cannot reach the cluster, does not answer, or died."""

    reason = "GENERATOR"
    remedy = "Correct what the message names: the target, the key, or what the load generator lacks."


class EngineError(PenstockError):
    """Failure of an engine."""

    reason = "ENGINE"
    remedy = "Read the replica's log."


class EngineStartError(EngineError):
    """An engine that does not come up or fails its self-test."""

    reason = "ENGINE_START"
    remedy = "Correct what the message names: most often memory, the model's path, or a setting of `pools.NAME.vllm`."

    def __init__(self, detail: str, *, final: bool = False) -> None:
        """`final`: whether another start with the same settings would fail the same way."""
        self.final = final
        super().__init__(detail)


class EngineDeadError(EngineError):
    """An engine process that died; only a new replica helps."""

    reason = "ENGINE_DEAD"
    remedy = "Nothing: the replica is replaced. If it happens again, read the replica's log."


class EngineRequestError(EngineError):
    """A request that the engine refuses."""

    reason = "ENGINE_REQUEST"
    remedy = (
        "Leave out what the engine does not support. Operators: the engine's own text is in the router's log, "
        "under the incident id."
    )

    def __init__(self, message: str, *, elsewhere: bool = False) -> None:
        """`elsewhere`: whether another replica may take it, because this one lacks something for a while."""
        self.elsewhere = elsewhere
        super().__init__(message)
