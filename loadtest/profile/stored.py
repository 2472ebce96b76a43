"""The stored profile: one JSON file per engine in the state folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from cluster.control.step_model import Experts, StepModel
from cluster.errors import SettingsError, plain_reason

FOLDER = "profiles"


@dataclass(frozen=True, slots=True)
class CellCheck:
    """Held-out cell of the grid: predicted and measured seconds per step."""

    batch: int
    prompt_tokens: int
    output_tokens: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Relative error. A negative one means that the prediction was too fast."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured profile of one engine."""

    model: str
    hardware: str
    tensor_parallel: int
    precision: str
    a: float
    b: float
    g: float
    """Coefficients a, b and g of the step model: seconds per step, per computed token and per context token."""
    overhead_s: float
    """Seconds from a request's submission to its first token, without the steps that it takes."""
    overhead_steps: float
    """Steps that a prompt waits at a busy batch, beside the rest of the running one."""
    kv_tokens: int
    max_sequences: int
    step_tokens: int
    context: int
    samples: int
    """Number of steps that were fitted."""
    fit_error: float
    """Median |measured - predicted| / predicted of short runs of steps that were fitted."""
    error: float
    """Mean |predicted - measured| / measured of the held-out cells."""
    checks: Sequence[CellCheck]
    batches: tuple[int, int]
    """Smallest and largest measured batch. The profile does not apply to others."""
    lengths: tuple[int, int]
    """Smallest and largest measured length, prompt and output together."""
    seconds: float
    """Seconds that the measurement took."""
    m: float = 0.0
    """Seconds to read all experts of a mixture; 0 where steps are not told apart by them."""
    experts: tuple[int, int] | None = None
    """All experts, and those active per token."""

    @property
    def model_of_steps(self) -> StepModel:
        """Step model."""
        experts = Experts(*self.experts) if self.experts else None
        return StepModel(self.a, self.b, self.g, self.m if experts else 0.0, experts)

    @property
    def file_name(self) -> str:
        """Name of the file that stores it."""
        text = f"{self.model}-{self.hardware}-tp{self.tensor_parallel}-{self.precision}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") + ".json"

    def save(self, folder: Path) -> Path:
        """Write the profile below the state folder. Return the file.

        Raises:
            SettingsError: it cannot be written.
        """
        file = folder_of_profiles(folder) / self.file_name
        try:
            file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"profile: {file} cannot be written: {plain_reason(error)}") from error
        return file


def folder_of_profiles(state_dir: Path) -> Path:
    """Return the folder of profiles, which is made if it isn't there.

    Raises:
        SettingsError: it can't be made, or nothing can be written in it.
    """
    folder = state_dir.expanduser() / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SettingsError(f"profile: {folder} cannot be written: {plain_reason(error)}") from error
    return folder


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Raises:
        SettingsError: it cannot be read, or a value is missing or wrong.
    """
    try:
        data = json.loads(path.expanduser().read_text(encoding="utf-8-sig"))
        if not isinstance(data, dict):
            raise SettingsError(f"profile: {path} must hold one JSON object")
        return _profile(data)
    except OSError as error:
        raise SettingsError(f"profile: {path} cannot be read: {plain_reason(error)}") from error
    except KeyError as error:
        raise SettingsError(f"profile: {path} is no profile: {error.args[0]} is missing") from error
    except (ValueError, LookupError, TypeError) as error:
        raise SettingsError(f"profile: {path} is no profile: {error}") from error


def _profile(data: Mapping[str, Any]) -> Profile:
    checks = tuple(CellCheck(**each) for each in data["checks"])
    pairs = {name: (int(data[name][0]), int(data[name][1])) for name in ("batches", "lengths")}
    # Older profiles have no overhead_steps.
    experts = data.get("experts")
    if experts is not None:
        total, active = (int(each) for each in experts)
        if not 1 <= active <= total:
            raise ValueError(f"experts must be all experts and the active ones, at least 1, got {total} and {active}")
        pairs["experts"] = (total, active)
    profile = Profile(**{"overhead_steps": 1.0, **data, "checks": checks, **pairs})
    if min(profile.a, profile.b, profile.g, profile.m, profile.error) < 0:
        raise ValueError("a, b, g, m and error must be at least 0")
    if profile.a + profile.b <= 0 or min(profile.kv_tokens, profile.max_sequences, profile.step_tokens) < 1:
        raise ValueError("step times, kv_tokens, max_sequences and step_tokens must be above 0")
    return profile
