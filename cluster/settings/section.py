"""Base class and value types of all groups of settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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
    """A frozen group of settings. An unknown key is an error. So is a number that is not finite: settings are sent to
    other processes as JSON, which has no such numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
