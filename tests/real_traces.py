"""The published traces and operator tables, where a machine has them: tests that need them are skipped elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared"


def real_trace(filename: str) -> Path:
    """A file of QBA_DATA_DIR, data/ or a folder beside the repository; skips the test where there is none."""
    beside = [BESIDE_THE_REPOSITORY / folder for folder in ("traces", "profiles")]
    places = [os.environ.get("QBA_DATA_DIR"), Path(__file__).resolve().parents[1] / "data", *beside]
    for place in places:
        if place and (Path(place) / filename).is_file():
            return Path(place) / filename
    pytest.skip(f"{filename} is not at hand: set QBA_DATA_DIR to a folder that holds it (see data/README.md)")
