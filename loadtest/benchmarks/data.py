"""The place of recorded loads and measurements, which are not in the repository."""

from __future__ import annotations

import os
from pathlib import Path

from cluster.errors import SettingsError

VARIABLE = "PENSTOCK_DATA"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_folder() -> Path:
    """Return the folder that the variable names, else the one beside the checkout."""
    return Path(os.environ.get(VARIABLE) or _BESIDE)


def check_there(path: Path, flag: str) -> None:
    """Check a path before any measurement.

    Raises:
        SettingsError: the file or folder is missing. The message names the flag for another one.
    """
    if not path.exists():
        raise SettingsError(
            f"there is no {path}: name the folder of the data with make's DATA=FOLDER or the variable {VARIABLE}, "
            f"or this one with {flag}"
        )
