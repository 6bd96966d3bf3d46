"""Which policy, and which quota and aging quantile, an objective asks for on one's own trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from qba.advice.measures import Objective, Windowed, attrs, check_members, estimates, objective, window_edges
from qba.advice.replays import side_by_side
from qba.config import EngineConfig
from qba.engine.simulate import serve
from qba.errors import InputError
from qba.intervals import ESTIMATE
from qba.policies import AA, FCFS, PSF, QBA, Policy
from qba.requests import Requests

QUOTAS = (1, 2, 3, 4, 5, 6, 8, 10, 14, 20)
QUANTILES = (0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
WINDOWS = 40
PARTS = ("search", "held out")
GAIN_TEXT = "gain over FCFS on the held-out windows, paired: of a mean relative, of a quantile in requests above FCFS's"


def tune(
    requests: Requests,
    wanted: str | Objective,
    config: EngineConfig = EngineConfig(),
    *,
    quotas: Sequence[int] = QUOTAS,
    quantiles: Sequence[float] = QUANTILES,
    progress: bool = True,
) -> xr.Dataset:
    """Replay a trace under QBA at every quota and aging quantile, and under FCFS, PSF and AA.

    Every other window of requests is for the search; those between are held out, so that what is chosen is judged by
    requests that had no say in the choice. A setting counts as meeting a bound in the search if the upper end of its
    interval there does.

    Parameters
    ----------
    requests : Requests
        At least some 1000, for windows enough.
    wanted : str or Objective
        Such as ``"min mean s.t. p99_long <= 2.0"`` (see `measures.objective`).
    config : EngineConfig
    quotas, quantiles : sequences
        Values of k and γ to try.
    progress : bool
        Show a progress bar.

    Returns
    -------
    xarray.Dataset
        Dimensions (setting, part, estimate), the part being "search" or "held out": one variable for each measure of the
        objective, in seconds. By setting: `policy`, `quota`, `aging_quantile` (NaN where there is none), and
        `rank`: 0 for the setting chosen, 1 for the next best and so on, −1 where a bound is not met in the search. By
        (setting, part): `meets`, whether the value meets all bounds. By (setting, estimate): `gain` over FCFS on the held-out
        windows, paired (see `measures.Windowed`). The attribute ``objective`` has the objective.

    Raises
    ------
    InputError
        If the objective cannot be read, there are too few requests, or one is longer than the KV limits allow.
    """
    wanted = objective(wanted) if isinstance(wanted, str) else wanted
    edges = window_edges(len(requests), WINDOWS)
    if len(edges) - 1 < 10:
        raise InputError(
            f"tune: {len(requests):,} requests are too few to search on one half and judge by the other: 500 are needed"
        )
    measures = (wanted.measure, *(bound.measure for bound in wanted.bounds))
    measures = tuple(dict.fromkeys(measures))
    check_members(requests, measures)
    policies = [FCFS(), PSF(), *(AA(aging_quantile=g) for g in quantiles)]
    policies += [QBA(quota=k, aging_quantile=g) for k in quotas for g in quantiles]
    parts = [np.arange(first, len(edges) - 1, 2) for first in (0, 1)]

    plain = Windowed(requests, serve(requests, policies[0], config), wanted.measure, edges, parts[1])

    def look(policy: Policy) -> tuple[np.ndarray, list[float]]:
        run = serve(requests, policy, config)
        found = np.array([estimates(requests, run, measures, edges, part) for part in parts])
        return found, plain.gain(Windowed(requests, run, wanted.measure, edges, parts[1], plain.limit))

    found = side_by_side(look, [(policy,) for policy in policies], len(requests), progress)
    values = np.array([values for values, _ in found])
    variables = {
        m.variable: (("setting", "part", "estimate"), values[:, :, i], attrs("s", m.text))
        for i, m in enumerate(measures)
    }
    variables["gain"] = (("setting", "estimate"), [gain for _, gain in found], attrs("1", GAIN_TEXT))
    study = xr.Dataset(
        variables,
        {
            "policy": ("setting", [policy.name for policy in policies], attrs("1", "scheduling policy")),
            "quota": ("setting", [float(getattr(p, "quota", np.nan)) for p in policies], attrs("1", "quota (k)")),
            "aging_quantile": (
                "setting",
                [float(getattr(p, "aging_quantile", np.nan)) for p in policies],
                attrs("1", "aging quantile (gamma)"),
            ),
            "part": ("part", list(PARTS), attrs("1", "windows that the search looks at, or those held out")),
            "estimate": ("estimate", list(ESTIMATE), attrs("1", "estimate, and both ends of its 95 % interval")),
        },
        {"objective": str(wanted), "requests": len(requests), "engine": repr(config)},
    )
    return _ranked(study, wanted)


def _ranked(study: xr.Dataset, wanted: Objective) -> xr.Dataset:
    """Add whether each setting meets the bounds, and its rank among those that surely do in the search."""
    meets = xr.ones_like(study[wanted.measure.variable].sel(estimate="value", drop=True), bool)
    surely = meets.sel(part="search", drop=True)
    for bound in wanted.bounds:
        values = study[bound.measure.variable]
        meets &= values.sel(estimate="value", drop=True) <= bound.limit
        surely = surely & (values.sel(part="search", estimate="high", drop=True) <= bound.limit)
    goal = study[wanted.measure.variable].sel(part="search", estimate="value").values
    # Simpler first where the goal is the same: FCFS, PSF and AA stand before QBA.
    order = [int(i) for i in np.argsort(goal, kind="stable") if surely.values[i] and np.isfinite(goal[i])]
    rank = np.full(study.sizes["setting"], -1)
    rank[order] = np.arange(len(order))
    return study.assign(
        meets=meets.assign_attrs(attrs("1", "whether the value meets all bounds")),
        rank=("setting", rank, attrs("1", "place in the search, 0 for the best; -1 where a bound is not surely met")),
    )
