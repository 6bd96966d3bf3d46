"""How sure a fit is: errors of its parameters, profiles, hold-outs, another optimiser, other seeds; as one dataset.

A fit has noise on both sides, the paper's 100 seeds and ours, so that the covariance of the rows (`Comparison.covariance`)
gives that of the parameters by the delta method. Profiles and hold-outs are fits of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.optimize import minimize
from tqdm import tqdm

from qba.calibrate.families import FAMILIES, STEPS, Family
from qba.calibrate.search import FIT_SEEDS, FRESH_SEEDS, REFINING_SEEDS, Fit, Search, fit
from qba.calibrate.rows import ROWS, compare, simulate_points
from qba.errors import InputError

BASE = "exponential, lognormal"
EXAMINED = "gamma, lognormal; horizon"
"""The family whose fit is looked into: the one with the horizon and the spread of both lengths free."""
HELD_OUT = {"N07 to N10": ("N07", "N08", "N09", "N10"), "N11 to N15": ("N11", "N12", "N13", "N14", "N15")}
PROFILES = {"horizon_s": (60, 100, 140, 200, 280, 400), "prompt.cv": (0.4, 0.55, 0.7, 0.85, 1.0)}
"""Values that a parameter is held at while the others are fitted."""
SETS = 4
"""Disjoint sets of fresh seeds on which the default workload is judged: how much the verdict owes to chance."""


def parameter_covariance(found: Fit) -> np.ndarray:
    """Covariance of the logarithms of a fit's free parameters, shape (k, k).

    For weights W and slopes J (rows by parameters) the fit moves by −(JᵀW²J)⁻¹JᵀW² times an error of the rows.
    """
    weighted = found.weights[:, None] ** 2 * found.jacobian
    gain = np.linalg.solve(found.jacobian.T @ weighted, weighted.T)
    return gain @ found.refined.covariance @ gain.T


def profile(found: Fit, name: str, value: float, seeds: Sequence[int], executor: Executor | None = None) -> Fit:
    """The fit with one parameter held at a value and the others fitted to ``seeds``, from where the fit has them."""
    family = found.family.at(**{name: value})
    others = tuple(other for other in found.family.free if other != name)
    columns = [found.family.free.index(other) for other in others]
    # The others begin on the line along which the rows change least, not at values that belong to another `name`.
    slopes = found.weights[:, None] * found.jacobian
    shift = np.log(value / found.family.value(name))
    moves = -np.linalg.lstsq(slopes[:, columns], slopes[:, found.family.free.index(name)] * shift, rcond=None)[0]
    moved = {other: family.value(other) * float(np.exp(np.clip(m, -1, 1))) for other, m in zip(others, moves)}
    return fit(replace(family.at(**moved), free=others), seeds, seeds, executor=executor)


def by_another_optimiser(family: Family, seeds: Sequence[int], executor: Executor | None = None) -> tuple[float, float]:
    """Fit a family twice to the same seeds: as `fit` does, and by a method without derivatives, COBYQA (Ragonneau 2022).

    Both begin where the family is. Returns the sum of squared weighted log errors at `fit`'s minimum and at the other's.
    """
    found = fit(family, seeds, seeds, executor=executor)
    search = Search(family, seeds, found.weights, {"executor": executor})
    scale = 10 * family.steps()

    def cost(z: np.ndarray) -> float:
        return float(np.sum(search.residuals(z * scale) ** 2))

    begin = np.log([family.value(name) for name in family.free]) / scale
    options = {"initial_tr_radius": 1.0, "final_tr_radius": 0.02, "maxfev": 120}
    return found.cost, float(minimize(cost, begin, method="COBYQA", options=options).fun)


def calibration_study(
    families: Sequence[str] = tuple(FAMILIES),
    seeds: int = len(FIT_SEEDS),
    refining_seeds: int = len(REFINING_SEEDS),
    fresh_seeds: int = len(FRESH_SEEDS),
    points: int | None = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Fit the families, and look into the fit of one.

    Parameters
    ----------
    families : sequence of str
        Of `FAMILIES`. The last, or `EXAMINED` where it is among them, is looked into.
    seeds, refining_seeds, fresh_seeds : int
        Replications of the search, of its refinement, and of the verdict.
    points : int, optional
        Values at which each profile is taken; default: all of `PROFILES`.
    executor : concurrent.futures.Executor, optional
        Where the pieces run; default: threads on all cores.
    progress : bool
        Show a progress bar.

    Returns
    -------
    xarray.Dataset
        By family: ``parameter_value`` and its relative ``parameter_error`` (95 %), ``log_error`` and ``row_error`` of each
        row on fresh seeds, ``rms``, ``cost``, ``paired_chi_square``, ``free``. Of the family looked into: ``correlation``,
        ``profile_cost`` and ``profile_rms`` over (profile, point), ``held_out_error``, and the other optimiser's ``cost``.
        Of today's default: ``default_rms`` on several sets of fresh seeds.

    Raises
    ------
    InputError
        If a family is unknown.
    """
    for name in families:
        if name not in FAMILIES:
            raise InputError(f"calibration_study: no family {name!r}; there are {'; '.join(FAMILIES)}")
    if executor is None:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return calibration_study(families, seeds, refining_seeds, fresh_seeds, points, threads, progress)
    searching, refining, fresh = (
        range(first.start, first.start + n)
        for first, n in ((FIT_SEEDS, seeds), (REFINING_SEEDS, refining_seeds), (FRESH_SEEDS, fresh_seeds))
    )
    profiles = {name: _thinned(values, points) for name, values in PROFILES.items()}
    examined = EXAMINED if EXAMINED in families else families[-1]
    profiles = {name: values for name, values in profiles.items() if name in FAMILIES[examined].free}
    steps = len(families) + sum(map(len, profiles.values())) + len(HELD_OUT) + SETS + 1
    with tqdm(total=steps, unit="fit", disable=not progress, leave=False) as bar:

        def step(value):
            bar.update()
            return value

        fits = {name: step(fit(FAMILIES[name], searching, refining, executor=executor)) for name in families}
        found = fits[examined]
        study = _by_family(fits, fresh, executor)
        for name, values in profiles.items():
            held = [step(profile(found, name, value, searching, executor)) for value in values]
            dim = f"{name.replace('.', '_')}_held"
            text = f"{name} held at this value while the others are fitted"
            study[dim] = (
                dim,
                list(map(float, values)),
                {"units": "s" if name == "horizon_s" else "1", "long_name": text},
            )
            study[f"{dim}_cost"] = (dim, [one.cost for one in held], _text("sum of squared standardised log errors"))
            study[f"{dim}_rms"] = (dim, [one.refined.rms for one in held], _text("root-mean-square log error"))
        study = study.merge(
            _held_out({name: step(fit(FAMILIES[examined], searching, refining, leave_out=rows, executor=executor))
                       for name, rows in HELD_OUT.items()}, fresh, executor)
        )  # fmt: skip
        at_fit, at_minimum = step(by_another_optimiser(FAMILIES[examined], searching[: max(2, seeds // 2)], executor))
        study["cost_at_fit"] = (
            (),
            at_fit,
            _text("sum of squared standardised log errors at the fit, half of the search seeds"),
        )
        study["cost_at_minimum"] = ((), at_minimum, _text("the same at the other optimiser's minimum"))
        sets = [range(fresh.start + i * len(fresh), fresh.start + (i + 1) * len(fresh)) for i in range(SETS)]
        rms = [step(compare(simulate_points(Family().workload(), one, executor=executor)).rms) for one in sets]
        study["default_rms"] = ("set", rms, _text("root-mean-square log error of the default workload"))
        study["set"] = ("set", list(range(SETS)), _text("disjoint set of fresh seeds"))
    return study.assign_attrs(examined=examined, seeds=seeds, refining_seeds=refining_seeds, fresh_seeds=fresh_seeds)


def _thinned(values: Sequence[float], points: int | None) -> tuple[float, ...]:
    """So many of the values, evenly, both ends among them."""
    count = len(values) if points is None else min(points, len(values))
    return tuple(values[i] for i in np.linspace(0, len(values) - 1, count).round().astype(int))


def _text(long_name: str, units: str = "1") -> dict[str, str]:
    return {"units": units, "long_name": long_name}


def _by_family(fits: Mapping[str, Fit], fresh: Sequence[int], executor: Executor) -> xr.Dataset:
    parameters = sorted({name for one in fits.values() for name in (*one.family.free, "horizon_s")}, key=_order)
    verdicts = [compare(simulate_points(one.family.workload(), fresh, executor=executor)) for one in fits.values()]
    values, errors = (np.full((len(fits), len(parameters)), np.nan) for _ in range(2))
    for i, one in enumerate(fits.values()):
        deviation = dict(zip(one.family.free, np.sqrt(np.diag(parameter_covariance(one)))))
        for j, name in enumerate(parameters):
            if name in one.family.free or name == "horizon_s":
                values[i, j] = one.family.value(name)
            errors[i, j] = 1.96 * deviation.get(name, np.nan)
    examined = fits.get(EXAMINED, list(fits.values())[-1])
    covariance = parameter_covariance(examined)
    deviation = np.sqrt(np.diag(covariance))
    by_row = ("family", "row")
    return xr.Dataset(
        {
            "parameter_value": (("family", "parameter"), values, _text("value of a parameter at the fit (tokens, s or 1)")),
            "parameter_error": (("family", "parameter"), errors, _text("relative half-width of its 95 % interval")),
            "log_error": (by_row, [v.log_error for v in verdicts], _text("log of ours over the paper's, fresh seeds")),
            "row_error": (by_row, [v.standard_error for v in verdicts], _text("its standard error, ours and the paper's")),
            "rms": ("family", [v.rms for v in verdicts], _text("root-mean-square log error over N01 to N15, fresh seeds")),
            "cost": ("family", [np.sum((v.log_error / v.standard_error) ** 2) for v in verdicts], _text("sum of squared standardised log errors, fresh seeds")),
            "paired_chi_square": ("family", [v.paired_chi_square for v in verdicts], _text("squared distance from the paper if its rows share their seeds")),
            "free": ("family", [len(one.family.free) for one in fits.values()], _text("number of free parameters")),
            "correlation": (("of", "with"), covariance / np.outer(deviation, deviation), _text("correlation of the errors of two parameters")),
        },
        coords={
            "family": ("family", list(fits), _text("prompt and response family")),
            "parameter": ("parameter", parameters, _text("free parameter")),
            "row": ("row", list(ROWS), _text("row of the scorecard")),
            "of": ("of", list(examined.family.free), _text("parameter")),
            "with": ("with", list(examined.family.free), _text("parameter")),
        },
    )  # fmt: skip


def _order(name: str) -> tuple[int, int]:
    part, _, own = name.rpartition(".")
    return ("prompt", "response", "").index(part), list(STEPS).index(own)


def _held_out(fits: Mapping[str, Fit], fresh: Sequence[int], executor: Executor) -> xr.Dataset:
    verdicts = [compare(simulate_points(one.family.workload(), fresh, executor=executor)) for one in fits.values()]
    dims = ("held_out", "row")
    shown = [one.weights > 0 for one in fits.values()]
    return xr.Dataset(
        {
            "held_out_log_error": (dims, [v.log_error for v in verdicts], _text("log of ours over the paper's, fresh seeds")),
            "held_out_row_error": (dims, [v.standard_error for v in verdicts], _text("its standard error")),
            "shown": (dims, shown, _text("whether the fit was shown the row")),
        },
        coords={"held_out": ("held_out", list(fits), _text("rows that the fit was not shown"))},
    )  # fmt: skip
