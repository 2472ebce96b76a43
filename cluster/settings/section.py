"""Base class and value types of all groups of settings."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from cluster.addresses import bare_host
from cluster.sources import check_source

PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
FilePath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)).absolute())]
"""A path, stored as absolute. A relative one starts at the folder of the process that loads the settings; processes
that it starts run in other folders."""
Host = Annotated[str, AfterValidator(bare_host)]
"""A name or an address; IPv6 with or without brackets, stored without."""

Source = Annotated[str, AfterValidator(check_source)]
"""A place of files: a path, a hub id, or the URL of an object store. It stays as it is written."""


class Section(BaseModel):
    """A frozen group of settings. An unknown key is an error. So are a number that is not finite, because settings are
    sent to other processes as JSON, which has no such numbers, and true or false for a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would read as 0 or 1."""
        if isinstance(value, bool) and info.field_name is not None:
            numbers = _numbers_of(cls.model_fields[info.field_name].annotation)
            if numbers and bool not in numbers:
                raise ValueError("must be a number" if float in numbers else "must be an integer")
        return value


def _numbers_of(annotation: Any) -> set[Any]:
    """Return which of the types int, float and bool a field takes as such, not within a list or a table."""
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return {number for each in get_args(annotation) for number in _numbers_of(each)}
    return {annotation} if annotation in (int, float, bool) else set()
