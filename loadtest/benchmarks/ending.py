"""The end of a benchmark's process."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cluster.errors import PenstockError

FAILED = 2
INTERRUPTED = 130


def end(name: str, main: Callable[[], int | None]) -> None:
    """Run a benchmark and end the process. A missing requirement, or Ctrl-C, gives one line, a status, no traceback."""
    try:
        sys.exit(main())
    except PenstockError as error:
        sys.stderr.write(f"{name}: {error}\n")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        sys.exit(INTERRUPTED)
