"""Quota-based aging for prediction-guided scheduling in LLM serving: simulator, policies, model and study."""

from qba.config import EngineConfig
from qba.definition import policy
from qba.engine import simulate
from qba.errors import InputError
from qba.metrics import summarize
from qba.policies import AA, FCFS, PSF, QBA
from qba.predictor import mislabel, predict_lengths
from qba.profile_fit import fit_profile
from qba.profiles import PRESETS, Profile
from qba.requests import Requests
from qba.sweeps import sweep
from qba.traces import read_trace
from qba.workload import synthetic

__all__ = [
    "AA",
    "FCFS",
    "PRESETS",
    "PSF",
    "Profile",
    "QBA",
    "EngineConfig",
    "InputError",
    "Requests",
    "fit_profile",
    "mislabel",
    "policy",
    "predict_lengths",
    "read_trace",
    "simulate",
    "summarize",
    "sweep",
    "synthetic",
]


def __getattr__(name: str):
    """Rooms of the package that `import qba` leaves aside, such as ``qba.figures``, on first use."""
    import importlib

    if name.startswith("_"):
        raise AttributeError(f"module 'qba' has no attribute {name!r}")
    try:
        return importlib.import_module(f"qba.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"qba.{name}":
            raise
        raise AttributeError(f"module 'qba' has no attribute {name!r}") from None
