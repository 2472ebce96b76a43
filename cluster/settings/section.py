"""What the groups of settings have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.addresses import bare_host

PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
FilePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""Relative to the folder of the process that loads the settings; processes that it starts run in other folders."""
Host = Annotated[str, AfterValidator(bare_host)]
"""A name or an address; IPv6 with or without brackets, kept without."""


class Section(BaseModel):
    """Is a frozen group of settings; an unknown key is an error, and so is a number that is not finite: settings travel
    to other processes as JSON, which has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
