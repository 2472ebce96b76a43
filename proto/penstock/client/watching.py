"""State of a watch over all its connections. Pure: the caller supplies time and randomness."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from penstock.client.retry import OnWait, Uniform, doubled
from penstock.v1 import jobs_pb2
from penstock.values.errors import PenstockClientError, UnavailableError, protocol_error
from penstock.values.fields import build, check_seconds
from penstock.values.jobs import Job, JobResult, JobUpdate

_SHORTEST_WAIT_S = 0.05
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0


class WatchState:
    """State of a watch: turns messages into updates, each result once, and decides about reconnects.

    A watch may last for days. So it is not bounded by a number of tries, but by how long every connection failed.
    """

    def __init__(
        self,
        job_id: str,
        resume_token: bytes,
        progress_only: bool,
        patience: float,
        *,
        on_wait: OnWait | None = None,
        now: Callable[[], float] = time.monotonic,
        uniform: Uniform = random.uniform,
    ) -> None:
        check_seconds("patience", patience)
        self.ended = False
        """Whether the last update was returned."""
        self.target: int | None = None
        """Number of the router of the last connection; None before it."""
        self._job_id = job_id
        self._token = resume_token
        self._progress_only = progress_only
        self._patience = patience
        self._on_wait = on_wait
        self._now = now
        self._uniform = uniform
        self._failing_since = 0.0
        self._failures = 0
        self._seen: set[int] = set()

    def request(self) -> jobs_pb2.WatchJobRequest:
        """Build the request of the next connection."""
        return build(
            jobs_pb2.WatchJobRequest,
            job_id=self._job_id,
            resume_token=self._token,
            progress_only=self._progress_only,
        )

    def accept(self, message: jobs_pb2.WatchJobResponse) -> JobUpdate:
        """Return the update of a message, without results that came before."""
        self._failures = 0
        self._token = message.resume_token
        # After a rewind the results that were not lost come again.
        fresh = [result for result in message.results if result.index not in self._seen]
        self._seen.update(result.index for result in fresh)
        job = Job.from_proto(message.job)
        self.ended = job.state.ended
        return JobUpdate(job, tuple(map(JobResult.from_proto, fresh)), message.resume_token, message.rewound)

    def closed(self) -> None:
        """Note that the router ended the stream with OK.

        Raises:
            InternalError: the job has not ended.
        """
        if not self.ended:
            raise protocol_error("the watch ended before the job did")

    def failed(self, error: PenstockClientError) -> float | None:
        """Return the seconds until the next connection, or None when the error is final."""
        if self._failures == 0:
            # Counted from the first failure, not from the last message: a waiting job sends none for hours.
            self._failing_since = self._now()
        if not isinstance(error, UnavailableError) or self._now() - self._failing_since > self._patience:
            return None
        self._failures += 1
        # Watches that broke together must not come back together, also where the router names one wait for all.
        most = doubled(_FIRST_WAIT_S, self._failures, _LONGEST_WAIT_S)
        wait = (error.retry_after or 0.0) + self._uniform(_SHORTEST_WAIT_S, most)
        if self._on_wait is not None:
            self._on_wait(wait, error)
        return wait
