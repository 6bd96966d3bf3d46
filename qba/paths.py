"""Where things lie: the repository, its notebooks, the results and the downloaded data.

papermill runs a notebook in the caller's directory and nbval in the notebook's, so nothing may depend on the working
directory while the package is used from a checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def repository() -> Path:
    """The checkout that the package is used from; without one (an installed wheel), the working directory."""
    root = PACKAGE.parent
    is_checkout = (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir()
    return root if is_checkout else Path.cwd()


def results_dir() -> Path:
    """Where datasets, figures and reports go: the environment variable QBA_RESULTS_DIR, else results/."""
    chosen = os.environ.get("QBA_RESULTS_DIR")
    return Path(chosen).expanduser().absolute() if chosen else repository() / "results"


def notebooks_dir() -> Path:
    """Where the study's notebooks lie."""
    return repository() / "notebooks"


def data_dir() -> Path:
    """Where downloaded traces go and the small committed ones lie."""
    return repository() / "data"
