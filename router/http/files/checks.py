"""Checks of the lines of a file, before a batch of it can begin. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

from cluster.errors import InvalidRequestError
from penstock.batch.encoding import ESCAPED, encoding_problem
from penstock.batch.input import BatchFileError, BatchLine, read_line
from penstock.models import ModelTask, StructuredOutput
from penstock.values.objects import shown
from router.http.bodies import constraint_names, name_in
from router.http.errors import in_body
from router.http.files.endpoints import ENDPOINTS
from router.http.files.notes import LineError
from router.http.responses.lines import URL as RESPONSES
from router.http.responses.places import place_of
from router.identity import Caller, may_use, require_model
from router.jobs.lines import request_of, task_problem
from router.jobs.upload import MAX_CUSTOM_ID_BYTES
from router.validation import RequestLimits, check_request
from router.validation.pooling import check_embed

MAX_ERRORS = 20
"""Errors of a file that are kept. Lines after that many are not checked."""
_MAX_MESSAGE = 400
"""Longest message of an error, in characters."""
_NAME_BYTES = 12
"""Bytes of a custom_id's digest. With them two of a million names are the same once in 10**17 files."""


class LineChecks:
    """Judge of one file. It notes what is wrong and goes on, unless the file is none of JSON lines."""

    def __init__(
        self,
        served: Collection[str],
        caller: Caller,
        limits: RequestLimits,
        task: Callable[[str], ModelTask | None] = lambda _model: None,
    ) -> None:
        """`served`: names of the models that this router serves, aliases included; `task`: that of a model, where it is
        known.
        """
        self.model = ""
        """Model of the first line that names one."""
        self.errors: list[LineError] = []
        self.urls: dict[str, int] = {}
        """Endpoints, and the first line of each."""
        self.constraints: dict[StructuredOutput, tuple[int, str]] = {}
        """Constraints that no compiler has judged yet, with the first line of each and its field there."""
        self._served = served
        self._caller = caller
        self._limits = limits
        self._task = task
        self._names: set[bytes] = set()
        self._judged: set[StructuredOutput] = set()

    def check(self, number: int, raw: bytes) -> None:
        """Check a line.

        Raises:
            InvalidRequestError: it is not UTF-8, or it is the first one and no JSON object.
            PermissionDeniedError: the caller may not use the file's model.
        """
        if len(self.errors) >= MAX_ERRORS:
            return
        if not raw.strip():
            self.note(None, "empty_file", "the file has no requests", None)
            return
        text = raw.decode(errors=ESCAPED)
        try:
            line = read_line(text, number, ignore_unknown=True, endpoints=ENDPOINTS)
        except BatchFileError as error:
            first = not (self.urls or self.errors)
            if not error.field and (first or encoding_problem(text) is not None):
                # No batch was meant by such a file.
                problem = f"must have a JSON object in UTF-8 on each line; line {number}: {error.problem}"
                raise InvalidRequestError.of("file", problem) from None
            code = "invalid_request" if error.field else "invalid_json_line"
            self.note(number, code, error.problem, error.field or None)
            return
        self.urls.setdefault(line.url, number)
        self._check_model(number, line.model)
        self._check_name(number, line.item.custom_id)
        self._check_request(number, line)

    def note(self, number: int | None, code: str, problem: str, param: str | None) -> None:
        """Note an error; past MAX_ERRORS none is kept."""
        if len(self.errors) < MAX_ERRORS:
            where = "" if number is None else f"line {number}: "
            message = f"{where}{param}: {problem}" if param else f"{where}{problem}"
            self.errors.append(LineError(number, code, message[:_MAX_MESSAGE], param))

    def _check_model(self, number: int, model: str) -> None:
        if not self.model:
            require_model(self._caller, model)
            self.model = model
        if model != self.model:
            self.note(
                number, "mismatched_model", f"must be {shown(self.model)} as on the lines before, got {shown(model)}",
                "body.model",
            )  # fmt: skip
        elif model not in self._served:
            known = ", ".join(name for name in sorted(self._served) if may_use(self._caller, name))
            self.note(
                number, "model_not_found", f"{shown(model)} is not a model here; known models: {known}", "body.model"
            )

    def _check_name(self, number: int, name: str) -> None:
        size = len(name.encode(errors="replace"))
        if size > MAX_CUSTOM_ID_BYTES:
            problem = f"must have at most {MAX_CUSTOM_ID_BYTES} bytes, got {size}"
            self.note(number, "invalid_request", problem, "custom_id")
        digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=_NAME_BYTES).digest()
        if digest in self._names:
            self.note(number, "duplicate_custom_id", f"{shown(name)} is on an earlier line already", "custom_id")
        self._names.add(digest)

    def _check_request(self, number: int, line: BatchLine) -> None:
        try:
            item = line.item.to_proto()
            request_of(item).model = line.model
            if problem := task_problem(item, line.model, self._task(line.model)):
                self.note(number, "invalid_request", problem, "body.model")
                return
            if item.HasField("embed"):
                check_embed(item.embed, self._limits)
                return
            constraint = check_request(item.request, self._limits).sampling.structured
        except InvalidRequestError as error:
            for violation in error.violations:
                self.note(number, "invalid_request", violation.description, _place(line, violation.field))
            return
        except (TypeError, ValueError) as error:
            self.note(number, "invalid_request", str(error), "body")
            return
        if constraint is not None and constraint not in self._judged:
            self._judged.add(constraint)
            self.constraints[constraint] = number, _place(line, "sampling.structured_output")


def _place(line: BatchLine, field: str) -> str:
    """Return the place of one of our fields in a line."""
    if field.startswith("sampling.structured_output") and line.constraint not in ("", "response_format"):
        return f"body.{name_in(constraint_names(line.constraint), field)}"
    return f"body.{in_body(place_of(field) if line.url == RESPONSES else field)}"
