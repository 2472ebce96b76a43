"""The limit of open files of a process."""

from __future__ import annotations

import resource

from cluster.errors import SetupError


def raise_open_files() -> int:
    """Raise the soft limit of this process, and of those that it starts, to the hard one. Return the limit.

    The soft limit is 1,024 on many systems, for programs that use select(). A router needs a file per connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.RLIM_INFINITY if hard == resource.RLIM_INFINITY else hard


def need_open_files(needed: int, whose: str) -> None:
    """Check that a process may open so many files; raise the soft limit for that.

    Raises:
        SetupError: the hard limit (RLIMIT_NOFILE) is lower.
    """
    most = raise_open_files()
    if most != resource.RLIM_INFINITY and most < needed:
        what = f"{whose} needs {needed:,} open files, and RLIMIT_NOFILE allows {most:,}"
        raise SetupError(f"{what}; root raises the hard limit with `ulimit -Hn {needed}`")
