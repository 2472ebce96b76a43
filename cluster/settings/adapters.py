"""Value of an adapter in the registry."""

from __future__ import annotations

from pydantic import Field

from cluster.settings.section import PoolName, Section, Source


class AdapterSettings(Section):
    """A LoRA adapter that replicas load while they run."""

    pool: PoolName
    """Pool whose model it changes."""
    source: Source = Field(min_length=1, max_length=4096)
    """Place of its files as replicas see it: the path of a folder, of an archive (.zip, .tar, .tar.gz, .tgz), a hub id
    such as "org/name", with "@revision" at its end for one revision, or the URL of an object store (s3://, gs://,
    az://). A path begins with "/", "~" or ".". Every replica makes its own copy when it loads the adapter."""
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the files that count, in hex, as `penstock get adapters` shows it. A replica refuses other files.
    Default: any files."""
    base: str = Field(default="", max_length=4096)
    """Model that it was made for, for people. Replicas check the shapes of its weights."""
