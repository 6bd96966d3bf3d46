"""Which claims survive other readings: the paper's study under each alternative to a rule that the paper leaves open.

A `Reading` names the options it takes. To add one, add it to `READINGS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from qba import azure, claims, model, starvation
from qba.calibrate import FIT_SEEDS, REFINING_SEEDS, Family, compare, fit, servable
from qba.claims.evidence import GRADES
from qba.config import EngineConfig
from qba.errors import InputError
from qba.lengths import Exponential, Gamma, LogNormal
from qba.policies import AA, FCFS, PSF, QBA, Policy
from qba.results import KEEPS
from qba.sweeps import check_seeds, replay, sweep
from qba.traces import standin_2024
from qba.workload import PROMPT, RESPONSE

RATES = tuple(range(26, 41))
QUOTAS = (2, 4, 5, 6, 8, 10, 12, 14)
QUANTILES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
ERROR_RATES = (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
DELAY_QUOTAS = (2, 5, 14)
REFERENCE_RATE = 32
UNJUDGED = len(GRADES)
"""The code of a claim that has no verdict: it is undefined there, or was not run."""


@dataclass(frozen=True)
class Reading:
    """One way to read what the paper leaves open: the options that differ from the default.

    Parameters
    ----------
    name : str
    engine, aging, quota : mapping
        Options of `EngineConfig`, of AA and QBA, and of QBA alone.
    workload : mapping
        Parameters of `qba.synthetic`.
    labels : mapping
        ``label_by`` and ``label_threshold`` of the trace windows.
    parallelism : str
        How the reduced model's n is chosen.
    """

    name: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    aging: Mapping[str, Any] = field(default_factory=dict)
    quota: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    parallelism: str = "formula"

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(**self.engine)

    @property
    def policies(self) -> list[Policy]:
        return [FCFS(), PSF(), AA(**self.aging), QBA(**self.aging, **self.quota)]

    @property
    def changes_the_simulator(self) -> bool:
        """Whether it changes the engine or a policy, so that the workload should be fitted anew."""
        return bool(self.engine or self.aging or self.quota)


def _clipped(prompt: int, response: int) -> dict[str, Any]:
    """The default workload with the few requests shortened that would never fit the engine."""
    return {"prompt": Exponential(PROMPT.mean, at_most=prompt),
            "response": LogNormal(RESPONSE.mean, cv=RESPONSE.cv, at_most=response)}  # fmt: skip


_WHOLE = _clipped(2700, 5490)  # together at most the KV capacity, which an engine that evicts must hold alone
_RESERVED = _clipped(2000, 3700)  # together at most the KV-safe limit
READINGS: tuple[Reading, ...] = (
    Reading("default"),
    Reading("KV: chunk", engine={"kv_projection": "chunk"}),
    Reading("KV: prompt", engine={"kv_projection": "prompt"}),
    Reading("KV: reserve all", engine={"kv_projection": "reserve-all"}, workload=_RESERVED),
    Reading("blocked: skip", engine={"on_blocked": "skip"}),
    Reading("overflow: preempt", engine={"on_overflow": "preempt"}, workload=_WHOLE),
    Reading("decode: whole blocks", engine={"decode_partial": False}),
    Reading("aging: waiting queue", aging={"aging_sample": "queue"}),
    Reading("aging: predicted-long", aging={"aging_classes": "predicted-long"}),
    Reading("aging: last 200", aging={"aging_window": 200}),
    Reading("debt: cleared at start", quota={"promotion_clears": "start"}),
    Reading("long + at start", aging={"aging_classes": "predicted-long"}, quota={"promotion_clears": "start"}),
    Reading("long + last 200", aging={"aging_classes": "predicted-long", "aging_window": 200}),
    Reading("chunk + preempt", engine={"kv_projection": "chunk", "on_overflow": "preempt"}, workload=_WHOLE),
    Reading("skip + preempt", engine={"on_blocked": "skip", "on_overflow": "preempt"}, workload=_WHOLE),
    Reading("reserve all + skip", engine={"kv_projection": "reserve-all", "on_blocked": "skip"}, workload=_RESERVED),
    Reading("model: n matched", parallelism="matched"),
    Reading("label: total tokens", labels={"label_by": "total"}),
    Reading("label: one threshold", labels={"label_threshold": "whole"}),
    Reading("150 s", workload={"prompt": Exponential(322), "response": LogNormal(449, cv=1.0), "horizon_s": 150}),
    Reading("gamma prompts, 210 s", workload={"prompt": Gamma(330, cv=0.72), "response": LogNormal(442, cv=1.02), "horizon_s": 210}),
)  # fmt: skip
"""The default, each alternative alone, sensible combinations, and other workloads that fit the numbers (`qba.calibrate`)."""

WORKLOADS = ("default", "refitted")


def paper_study(
    reading: Reading, seeds: int | Sequence[int], windows: int, executor: Executor | None = None
) -> dict[str, xr.Dataset]:
    """The datasets behind the scorecard under one reading: those that `qba.claims.scorecard` takes.

    Parameters
    ----------
    reading : Reading
    seeds : int or sequence of int
        Replications of each synthetic point.
    windows : int
        Windows of the stand-in for the production trace.
    executor : concurrent.futures.Executor, optional
        Where the pieces run; default: threads on all cores.
    """
    seeds = check_seeds(seeds)
    config, policies, workload = reading.config, reading.policies, dict(reading.workload)
    fcfs, _, aging, quota = policies

    def grid(chosen: Sequence[Policy], rate: float | Sequence[float] = REFERENCE_RATE, **axes: Any) -> xr.Dataset:
        fixed = {name: [value] for name, value in workload.items()}
        table = sweep(chosen, rate, seeds, config, executor, progress=False, **axes, **fixed)
        return table.squeeze([*fixed, *([] if np.ndim(rate) else ["rate"])], drop=True)

    # The claims look along two lines of the plane of quota and quantile, which cross at the defaults.
    lines = [
        grid([fcfs, aging, quota], quota=axes[0], aging_quantile=axes[1])[KEEPS["sensitivity"]]
        for axes in ((QUOTAS, [aging.aging_quantile]), ([quota.quota], QUANTILES))
    ]
    directions = ("short_to_long", "long_to_short")
    errors = [grid(policies, **{name: ERROR_RATES}).rename({name: "error_rate"}) for name in directions]
    parts = [servable(part, config) for part in standin_2024(windows, **reading.labels)]
    theory = model.reduced_model(RATES, len(seeds), config, executor, False, aging=aging, quota=quota, **workload)
    chosen = theory.sel(parallelism=[reading.parallelism]).assign_coords(parallelism=["formula"])
    return {
        "load_sweep": grid(policies, RATES),
        "sensitivity": lines[0].combine_first(lines[1]),
        "prediction_errors": xr.concat(errors, xr.DataArray(list(directions), dims="direction", name="direction")),
        "theory": chosen,
        "azure_standin": replay(parts, policies, config, executor, progress=False).merge(azure.describe(parts)),
        "promotion_delay": starvation.promotion_delay(
            DELAY_QUOTAS, REFERENCE_RATE, seeds, config, executor, progress=False, policy=quota, **workload
        ),
    }


def refit(reading: Reading, seeds: int, executor: Executor | None = None) -> Reading:
    """The reading with the mean lengths that fit the paper's numbers best under it.

    A rule that admits less leaves the engine with less capacity, and at the same load every claim changes. Fitting the mean
    lengths anew leaves what the rule does besides.

    Parameters
    ----------
    reading : Reading
        One that changes engine or policies.
    seeds : int
        Replications of the search; its refinement takes as many again.
    executor
        As in `paper_study`.
    """
    lengths = {name: reading.workload.get(name, law) for name, law in (("prompt", PROMPT), ("response", RESPONSE))}
    family = Family(**lengths, free=("prompt.mean", "response.mean"))
    searching, refining = (range(first.start, first.start + seeds) for first in (FIT_SEEDS, REFINING_SEEDS))
    found = fit(family, searching, refining, config=reading.config, qba=reading.policies[3], executor=executor).family
    workload = {"prompt": found.prompt, "response": found.response}
    return Reading(
        reading.name, reading.engine, reading.aging, reading.quota, workload, reading.labels, reading.parallelism
    )


def robustness_study(
    readings: Sequence[str] = tuple(reading.name for reading in READINGS),
    seeds: int = 100,
    windows: int = 100,
    refit_seeds: int = 100,
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Judge every claim under readings of the paper, with the default workload and with one fitted to the reading.

    Parameters
    ----------
    readings : sequence of str
        Names in `READINGS`.
    seeds, windows : int
        Replications of each synthetic point, and windows of the stand-in trace.
    refit_seeds : int
        Replications of each search for mean lengths; 0 leaves the fits out.
    executor : concurrent.futures.Executor, optional
        Where the pieces run; default: threads on all cores.
    progress : bool
        Show a progress bar.

    Returns
    -------
    xarray.Dataset
        ``verdict`` over (workload, reading, claim): the place of the claim's grade in `qba.claims.evidence.GRADES` (rows that
        need data: their grade on the stand-in), or `UNJUDGED`; ``value`` of the numbers; ``rms`` over (workload, reading): the
        root-mean-square log error over N01 to N15; ``prompt_mean`` and ``response_mean``.

    Raises
    ------
    InputError
        If a reading is unknown.
    """
    known = {reading.name: reading for reading in READINGS}
    for name in readings:
        if name not in known:
            raise InputError(f"robustness_study: no reading {name!r}; there are {', '.join(known)}")
    if executor is None:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return robustness_study(readings, seeds, windows, refit_seeds, threads, progress)
    ids = sorted(claim.id for claim in claims.CLAIMS)
    shape = (len(WORKLOADS), len(readings))
    verdict, value = np.full((*shape, len(ids)), UNJUDGED, np.int8), np.full((*shape, len(ids)), np.nan)
    rms, prompt, response = (np.full(shape, np.nan) for _ in range(3))
    for j, name in enumerate(tqdm(readings, unit="reading", disable=not progress, leave=False)):
        columns = [known[name]]
        if refit_seeds and columns[0].changes_the_simulator:
            columns.append(refit(columns[0], refit_seeds, executor))
        for i, reading in enumerate(columns):
            study = paper_study(reading, seeds, windows, executor)
            rows = {row["id"]: row for row in claims.scorecard(study)}
            rms[i, j] = compare(study).rms
            prompt[i, j] = reading.workload.get("prompt", PROMPT).mean
            response[i, j] = reading.workload.get("response", RESPONSE).mean
            for c, id in enumerate(ids):
                grade = rows[id]["would_be"] or rows[id]["status"]
                verdict[i, j, c] = GRADES.index(grade) if grade in GRADES else UNJUDGED
                if rows[id]["kind"] == "number" and isinstance(rows[id]["reproduced"], float):
                    value[i, j, c] = rows[id]["reproduced"]

    def text(long_name: str, units: str = "1") -> dict[str, str]:
        return {"units": units, "long_name": long_name}

    by_reading = ("workload", "reading")
    codes = ", ".join(f"{code} {grade}" for code, grade in enumerate((*GRADES, "not judged")))
    return xr.Dataset(
        {
            "verdict": ((*by_reading, "claim"), verdict, text(f"verdict: {codes}")),
            "value": ((*by_reading, "claim"), value, text("number here, in the unit of its row of the scorecard")),
            "rms": (by_reading, rms, text("root-mean-square log error over N01 to N15")),
            "prompt_mean": (by_reading, prompt, text("mean prompt length", "tokens")),
            "response_mean": (by_reading, response, text("mean response length", "tokens")),
        },
        coords={
            "workload": ("workload", list(WORKLOADS), text("workload: the reading's own, or with mean lengths fitted to it")),
            "reading": ("reading", list(readings), text("reading of what the paper leaves open")),
            "claim": ("claim", ids, text("row of the scorecard")),
        },
        attrs={"seeds": len(check_seeds(seeds)), "windows": windows, "refit_seeds": refit_seeds},
    )  # fmt: skip
