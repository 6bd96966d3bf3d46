"""The reduced model against the simulator: how far off it is, and whether it orders the policies right.

The model is asked for the *shape*, each policy's mean wait relative to FCFS's, more than for the waits themselves. Why
the waits are off is the matter of `qba.model_steps`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import xarray as xr

from qba.errors import InputError
from qba.intervals import function_interval, mean_interval, stacked
from qba.policies import PAPER

POLICIES = tuple(cls().name for cls in PAPER)
PAIRS = tuple(itertools.combinations(POLICIES, 2))
W, SHORT_W, LONG_W = "wait_mean_s", "wait_mean_true_short_s", "wait_mean_true_long_s"


def model_error(table: xr.Dataset, reduced: xr.Dataset) -> xr.Dataset:
    """Compare both at each load.

    Parameters
    ----------
    table : xarray.Dataset
        From `qba.sweep`: the paper's four policies over (policy, rate, seed), with mean waits of all requests and of the
        true classes.
    reduced : xarray.Dataset
        From `qba.model.reduced_model`, at the same rates.

    Returns
    -------
    xarray.Dataset
        Dimension ``estimate``: value, low and high (95 % over paired seeds). By policy and rate: `wait_s` and
        `relative_wait` (over FCFS's) of the simulator; `conserved`, Σ_c ρ_c W_c over FCFS's, which is 1 for every
        non-preemptive order in a queue that conserves work (Kleinrock, Queueing Systems II, 1976, section 3.4), with
        the classes' service times of the calibration run; also by class, `relative_class_wait`: where it is below 1
        for both classes no weights at all conserve the sum. By parallelism, closure, policy and rate, NaN where the model
        has no steady state: `model_relative_wait`; `wait_ratio`, simulated over modelled wait; `wait_error` and
        `shape_error`, relative errors of the model's wait and relative wait. By pair of policies and rate: `decided`,
        whether the simulator's order is sure at 95 %; also by parallelism and closure: `ordered_right`, whether it is
        and the model has the same order. `extrapolated` as in ``reduced``.

    Raises
    ------
    InputError
        If the two differ in their rates, or a policy is missing.
    """
    _check(table, reduced)
    table = table.sel(policy=list(POLICIES))
    reduced = reduced.sel(policy=list(POLICIES))
    wait, model = table[W], reduced[W].where(np.isfinite(reduced[W]))
    simulated, relative = stacked(mean_interval(wait)), stacked(_over_fcfs(wait))
    model_relative = model / model.sel(policy="FCFS", drop=True)
    loads = _class_loads(reduced)
    classes = xr.DataArray(["short", "long"], dims="true_class", name="true_class")
    by_class = xr.concat([table[SHORT_W].drop_attrs(), table[LONG_W].drop_attrs()], classes)
    error = xr.Dataset(
        {
            "wait_s": simulated,
            "relative_wait": relative,
            "relative_class_wait": stacked(_over_fcfs(by_class)),
            "conserved": stacked(_over_fcfs(loads[0] * table[SHORT_W] + loads[1] * table[LONG_W])),
            "model_relative_wait": model_relative,
            "wait_ratio": simulated.sel(estimate="value", drop=True) / model,
            "wait_error": model / simulated.sel(estimate="value", drop=True) - 1,
            "shape_error": model_relative / relative.sel(estimate="value", drop=True) - 1,
            **_order(wait, model),
            "extrapolated": reduced.extrapolated,
        }
    )
    return labelled(error, TEXT).assign_attrs(table.attrs, replications=table.sizes["seed"])


TEXT = {
    "wait_s": ("s", "simulated mean wait"),
    "relative_wait": ("1", "simulated mean wait, relative to FCFS"),
    "relative_class_wait": ("1", "simulated mean wait of a true class, relative to FCFS"),
    "true_class": ("1", "true class of the requests"),
    "conserved": ("1", "simulated load-weighted mean wait, relative to FCFS"),
    "model_relative_wait": ("1", "mean wait in the reduced model, relative to FCFS"),
    "wait_ratio": ("1", "simulated over modelled mean wait"),
    "wait_error": ("1", "relative error of the modelled mean wait"),
    "shape_error": ("1", "relative error of the modelled mean wait relative to FCFS"),
    "decided": ("1", "whether the simulator decides the order of a pair of policies"),
    "ordered_right": ("1", "whether the model gives that order"),
    "extrapolated": ("1", "promoted fraction clamped, outside the measured loads"),
    "estimate": ("1", "value and ends of the 95 % interval"),
    "pair": ("1", "pair of policies"),
    "policy": ("1", "scheduling policy"),
    "rate": ("requests/s", "arrival rate"),
    "closure": ("1", "how promoted fractions enter"),
    "parallelism": ("1", "how n was chosen"),
}


def labelled(study: xr.Dataset, texts: Mapping[str, tuple[str, str]]) -> xr.Dataset:
    """Every variable and coordinate with its units and long name, and no other attribute."""
    study = study.drop_attrs(deep=True)
    for name in study.variables:
        study[name].attrs.update(units=texts[name][0], long_name=texts[name][1])
    return study


def _over_fcfs(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    return function_interval(lambda mine, theirs: mine / theirs, values, values.sel(policy="FCFS", drop=True))


def _class_loads(reduced: xr.Dataset) -> tuple[float, float]:
    """Loads of shorts and longs but for a factor λ/n, which all policies share."""
    share = float(reduced.short_share)
    return share * float(reduced.short_mean_s), (1 - share) * float(reduced.long_mean_s)


def _order(wait: xr.DataArray, model: xr.DataArray) -> dict[str, xr.DataArray]:
    """Whether each pair's order is sure in the simulator, and whether the model has it too."""
    decided, right = [], []
    for one, other in PAIRS:
        _, low, high = mean_interval(wait.sel(policy=one, drop=True) - wait.sel(policy=other, drop=True))
        modelled = model.sel(policy=one, drop=True) - model.sel(policy=other, drop=True)
        decided.append((low > 0) | (high < 0))
        right.append(((low > 0) & (modelled > 0)) | ((high < 0) & (modelled < 0)))
    pair = xr.DataArray([f"{one}, {other}" for one, other in PAIRS], dims="pair", name="pair")
    return {"decided": xr.concat(decided, pair), "ordered_right": xr.concat(right, pair)}


def _check(table: xr.Dataset, reduced: xr.Dataset) -> None:
    for name, dataset in {"table": table, "reduced": reduced}.items():
        missing = [policy for policy in POLICIES if policy not in dataset.policy.values]
        if missing:
            raise InputError(f"model_error: {name} lacks {', '.join(missing)}; the paper's four policies are compared")
    if not np.array_equal(table.rate.values, reduced.rate.values):
        raise InputError(
            f"model_error: rates differ: table has {table.rate.values.tolist()} and reduced "
            f"{reduced.rate.values.tolist()} requests/s"
        )
