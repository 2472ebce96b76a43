"""Where recorded loads and measurements lie: they are no part of the repository."""

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
    """Fail before anything is measured.

    Raises:
        SettingsError: the file or folder is not there; says what names another one.
    """
    if not path.exists():
        raise SettingsError(
            f"there is no {path}: name the folder of the data with make's DATA=FOLDER or the variable {VARIABLE}, "
            f"or this one with {flag}"
        )
