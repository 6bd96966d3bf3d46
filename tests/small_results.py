"""Small results of random numbers in the layout of the published ones, for figures and report."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import qba
from qba import excerpt, labels, model, model_error, model_steps
from qba.policies import PAPER
from qba.results import save
from qba.traces import standin_2024
from qba.traces.standin import draw_2024

POLICIES = ["FCFS", "PSF", "AA", "QBA"]
UNITS = {"rate": "requests/s", "throughput_tokens_per_s": "tokens/s"}
WAITS = ("wait_mean_s", "wait_p99_s", "wait_p99_true_short_s", "wait_p99_true_long_s")
TRACE_SCALARS = ("throughput_tokens_per_s", "batch_utilization", "kv_overflows")


def attributes(name: str) -> dict[str, str]:
    return {"units": UNITS.get(name, "s" if name.endswith("_s") else "1"), "long_name": name.replace("_", " ")}


def make(coords: dict[str, list], variables: tuple[str, ...] = WAITS, seed: int = 0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    shape = [len(values) for values in coords.values()]
    return xr.Dataset(
        {name: (tuple(coords), rng.gamma(4.0, 1.0, shape), attributes(name)) for name in variables},
        coords={name: (name, values, attributes(name)) for name, values in coords.items()},
    )


def make_load_sweep(seeds: int = 5) -> xr.Dataset:
    return make({"policy": POLICIES, "rate": [26, 32, 40], "seed": list(range(seeds))})


def make_sensitivity() -> xr.Dataset:
    axes = {"quota": [2, 5, 8], "aging_quantile": [0.5, 0.8, 1.0], "seed": [0, 1, 2]}
    return make({"policy": ["FCFS", "AA", "QBA"], **axes})


def make_prediction_errors() -> xr.Dataset:
    directions = ["short_to_long", "long_to_short"]
    return make({"direction": directions, "policy": POLICIES, "error_rate": [0.0, 0.05, 0.4], "seed": [0, 1, 2]})


def make_theory() -> xr.Dataset:
    coords = {"parallelism": ["formula", "matched"], "closure": ["mixture", "reclassify"], "policy": POLICIES}
    theory = make(coords | {"rate": [26.0, 33.0, 40.0]}, ("wait_mean_s",))
    theory.wait_mean_s.loc[{"parallelism": "matched", "rate": 40.0}] = np.inf
    beyond = (theory.rate > 33) & theory.policy.isin(["AA", "QBA"])
    theory["extrapolated"] = beyond.transpose("policy", "rate").assign_attrs(attributes("extrapolated"))
    theory["servers"] = ("parallelism", [10, 8], attributes("servers"))
    return theory


def make_azure(coords: dict[str, list], traffic: str, windows: int = 6) -> xr.Dataset:
    study = make(coords | {"policy": POLICIES, "window": list(range(windows))}, WAITS + TRACE_SCALARS)
    study["interarrival_scv"] = ("window", np.full(windows, 2.9), attributes("interarrival_scv"))
    return study.assign_attrs(traffic=traffic)


def make_azure_standin(windows: int = 6) -> xr.Dataset:
    return make_azure({}, "stand-in for a trace", windows)


def make_azure_2023() -> xr.Dataset:
    return make_azure({"trace": ["code", "conversation"], "label": ["response", "total"]}, "public traces")


@cache
def make_azure_labels() -> dict[str, xr.Dataset]:
    """The studies of labels, of a few small windows."""
    traces = {
        labels.STANDIN: standin_2024(3, 100),
        "synthetic": [qba.synthetic(seed=seed, horizon_s=3) for seed in range(3)],
    }
    return {
        "azure_labels": labels.label_study(traces, progress=False),
        "azure_dependence": labels.dependence_study(traces, (-0.3, 0.2, 0.7), progress=False),
        "azure_excerpt": excerpt.compare(draw_2024(100, seed=5), resamples=20),
    }


@cache
def make_model_error() -> dict[str, xr.Dataset]:
    """The reduced model against the simulator, with few replications."""
    table = qba.sweep([cls() for cls in PAPER], rate=[30, 34], seeds=2, horizon_s=[10], progress=False).squeeze(
        drop=True
    )
    reduced = model.reduced_model([30, 34], seeds=2, progress=False)
    return {
        "model_error": model_error.model_error(table, reduced),
        "model_steps": model_steps.model_steps([0.9], seeds=2, horizon_s=20),
    }


def make_horizon() -> xr.Dataset:
    grid = {"policy": POLICIES, "rate": [26.0, 36.0], "horizon_s": [10.0, 100.0, 1000.0]}
    study = make({"estimate": ["value", "low", "high"]} | grid, ("wait_mean_s", "wait_p99_s"))
    study["capacity"] = (("estimate", "policy"), np.full((3, 4), 31.0), attributes("capacity"))
    study["replications"] = ("horizon_s", [20, 20, 16], attributes("replications"))
    return study


def make_precision() -> xr.Dataset:
    quantities = ["mean", "ratio to FCFS, same seeds", "ratio to FCFS, other seeds"]
    axes = {"statistic": ["wait_mean_s", "wait_p99_s"], "policy": POLICIES, "seeds": [10, 100, 1000]}
    return make({"quantity": quantities} | axes, ("half_width",)).assign_attrs(rate=32, replications=100)


def make_calibration() -> xr.Dataset:
    families, rows = ["exponential, lognormal", "gamma, lognormal"], ["N01", "N02", "N17"]
    study = make({"family": families, "row": rows}, ("log_error", "row_error"))
    study["log_error"] = study.log_error - 4
    for name, values in {"horizon_s_held": [60.0, 200.0, 400.0], "prompt_cv_held": [0.4, 1.0]}.items():
        study = study.merge(make({name: values}, (f"{name}_cost", f"{name}_rms")))
    held = make({"held_out": ["N01", "N02"], "row": rows}, ("held_out_log_error", "held_out_row_error")) / 20
    study = study.merge(held.assign(shown=held.held_out != held.row))
    for name in study.variables:
        study[name].attrs = attributes(str(name))
    return study.assign_attrs(examined="gamma, lognormal", fresh_seeds=3)


def make_robustness() -> xr.Dataset:
    coords = {"workload": ["default", "refitted"], "reading": ["default", "KV: chunk"], "claim": ["N01", "S01", "S02"]}
    study = make(coords, ("value",)).merge(make({k: coords[k] for k in ("workload", "reading")}, ("rms",)))
    study.rms[1, 0] = np.nan
    codes = (np.arange(12) % 4).astype(np.int8).reshape(2, 2, 3)
    study["verdict"] = (tuple(coords), codes, attributes("verdict"))
    return study.assign_attrs(seeds=3, windows=4)


def make_scorecard() -> list[dict[str, Any]]:
    tightest = {
        "text": "A below B", "where": "rate 26", "value": 0.3, "low": 0.1, "high": 0.5, "unit": "s", "margin": 0.5, "seeds": 119,
    }  # fmt: skip

    def row(id: str, paper: float | str, reproduced: float | str, status: str, error: float | None = None) -> dict:
        half = None if error is None else 2 * error
        number = id.startswith("N") and isinstance(paper, (int, float)) and paper != 0
        return {
            "id": id, "kind": "number" if id.startswith("N") else "statement", "text": f"claim <{id}>", "paper": paper,
            "reproduced": reproduced, "unit": "s" if number else "", "standard_error": error,
            "relative_deviation": reproduced / paper - 1 if number else None,
            "combined_se_distance": None if error is None else -0.01, "status": status, "note": f"note & {id}",
            "low": half and reproduced - half, "high": half and reproduced + half,
            "comparisons": [] if number else [tightest],
        }  # fmt: skip

    return [
        row("N01", 0.8, 0.84, "reproduced", 0.05),
        row("N02", 10.0, 7.5, "close", 0.5),
        row("N18", -31, -48.0, "needs data"),
        row("N24", "0.89–0.91", "0.85–0.86", "needs data"),
        row("N25", 0, 0.0, "needs data"),
        row("S01", "holds", "at 30 of 30", "reproduced"),
        row("S02", "holds", "at 10 of 30", "not reproduced"),
    ]


def write_results(folder: Path) -> Path:
    """A results folder with every file that the published figures need."""
    datasets = {
        "load_sweep": make_load_sweep(), "sensitivity": make_sensitivity(), "theory": make_theory(),
        "prediction_errors": make_prediction_errors(), "azure_standin": make_azure_standin(),
        "azure_2023": make_azure_2023(), "horizon": make_horizon(), "precision": make_precision(),
        "calibration": make_calibration(), "robustness": make_robustness(),
        **make_azure_labels(), **make_model_error(),
    }  # fmt: skip
    for name, dataset in datasets.items():
        save(dataset, folder / f"{name}.nc", parameters={"seeds": 5, "of": name}, sources={f"{name}.csv": "ab12"})
    (folder / "scorecard.json").write_text(json.dumps(make_scorecard(), ensure_ascii=False), encoding="utf-8")
    return folder
