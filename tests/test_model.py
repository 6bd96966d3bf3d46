"""The reduced model against simulated queues, and the comparison of model and simulator."""

from __future__ import annotations

import heapq

import altair as alt
import numpy as np
import pytest
import xarray as xr
from small_results import make

import qba
from qba import model, model_error, model_steps
from qba.errors import InputError
from qba.figures import model as figures_of
from qba.figures.style import THEME
from qba.moments import ServiceMoments
from qba.results import save
from qba.theory import CLOSURES, Queue, fcfs_position

# --- one server against the closure's own derivation ------------------------------------------------------------------

SHORT_S, LONG_S, SHORT_SHARE, LOAD = 1.0, 4.0, 0.8, 0.8  # constant service times
TWO_CLASSES = ServiceMoments(SHORT_SHARE, SHORT_S, SHORT_S**2, LONG_S, LONG_S**2)
REPLICATIONS, ARRIVALS = 30, 20_000
STUDENT_T = 3.6594  # 0.9995-quantile with 29 degrees of freedom


def coin_server(long_first: float, rng: np.random.Generator) -> tuple[float, float]:
    """Mean waits of shorts and longs at one server that tosses for the order at the start of each busy period."""
    arrivals = rng.exponential(TWO_CLASSES.mean_s / LOAD, ARRIVALS).cumsum().tolist()
    longs = (rng.random(ARRIVALS) >= SHORT_SHARE).tolist()
    waits, queue, clock, i = np.empty(ARRIVALS), [], 0.0, 0
    while i < ARRIVALS or queue:
        if not queue and arrivals[i] >= clock:  # the server is idle: a busy period begins
            clock, last = arrivals[i], rng.random() < long_first
        while i < ARRIVALS and arrivals[i] <= clock:
            heapq.heappush(queue, (longs[i] != last, i))
            i += 1
        _, j = heapq.heappop(queue)
        waits[j] = clock - arrivals[j]
        clock += LONG_S if longs[j] else SHORT_S
    those = np.array(longs)
    return waits[~those].mean(), waits[those].mean()


@pytest.mark.parametrize("fraction", [0.0, 0.35, 1.0])
def test_conservation_closure_is_exact_for_a_server_that_tosses_a_coin(fraction):
    """Its ends are Cobham's two priority orders, and between them it is linear."""
    waits = np.array([coin_server(fraction, np.random.default_rng([5, r])) for r in range(REPLICATIONS)])
    exact = CLOSURES["conservation"](Queue(LOAD / TWO_CLASSES.mean_s, TWO_CLASSES, 1), fraction)
    half = STUDENT_T * waits.std(axis=0, ddof=1) / np.sqrt(REPLICATIONS)
    assert (half < 0.1 * np.array(exact)).all(), "too wide to test anything"
    assert (abs(waits.mean(axis=0) - exact) < half).all(), (waits.mean(axis=0), exact, half)


def test_the_coin_passes_fcfs_where_the_closure_says():
    position = fcfs_position(Queue(LOAD / TWO_CLASSES.mean_s, TWO_CLASSES, 1))
    assert 0.2 < position < 0.8
    paired = [
        [np.dot([SHORT_SHARE, 1 - SHORT_SHARE], coin_server(f, np.random.default_rng([6, r]))) for f in (0, 1)]
        for r in range(REPLICATIONS)
    ]
    psf, long_first = np.mean(paired, axis=0)
    fcfs = Queue(LOAD / TWO_CLASSES.mean_s, TWO_CLASSES, 1).fcfs_s
    assert psf < fcfs < long_first
    assert (fcfs - psf) / (long_first - psf) == pytest.approx(position, rel=0.1)


# --- model against simulator ------------------------------------------------------------------------------------------

POLICIES = ["FCFS", "PSF", "AA", "QBA"]
RATES = [30.0, 34.0]


@pytest.fixture
def reduced() -> xr.Dataset:
    """Waits by hand: FCFS 1 s, PSF half of it, AA and QBA by closure; no steady state at the second load if matched."""
    waits = np.ones((2, 2, 4, 2))
    waits[:, :, 1], waits[:, 0, 2], waits[:, 1, 2] = 0.5, 0.75, 1.25
    waits[:, :, 3] = 0.6
    waits[1, ..., 1] = np.inf
    dims = ("parallelism", "closure", "policy", "rate")
    coords = {"parallelism": ["formula", "matched"], "closure": ["mixture", "conservation"], "policy": POLICIES}
    extrapolated = np.array([[False, name in ("AA", "QBA")] for name in POLICIES])
    return xr.Dataset(
        {
            "wait_mean_s": (dims, waits),
            "extrapolated": (("policy", "rate"), extrapolated),
            "short_share": 0.75,
            "short_mean_s": 1.0,
            "long_mean_s": 3.0,
        },
        coords=coords | {"rate": RATES},
    )


@pytest.fixture
def table() -> xr.Dataset:
    """Ten seeds of FCFS about 10 s; PSF 4/10 of it, AA 12/10, QBA the same as FCFS but for the sign of its noise."""
    coords = {"policy": POLICIES, "rate": RATES, "seed": list(range(10))}
    scatter = np.random.default_rng(1).normal(10, 1, (2, 10))
    factors = {"FCFS": 1.0, "PSF": 0.4, "AA": 1.2}
    sheet = make(coords, ("wait_mean_s", "wait_mean_true_short_s", "wait_mean_true_long_s"))
    for name, factor in factors.items():
        sheet.wait_mean_s.loc[{"policy": name}] = factor * scatter
    sheet.wait_mean_s.loc[{"policy": "QBA"}] = scatter + np.tile([-1, 1], (2, 5))
    for name, (short, long) in {"FCFS": (10, 10), "PSF": (2, 12), "AA": (12, 9), "QBA": (10, 10)}.items():
        sheet.wait_mean_true_short_s.loc[{"policy": name}] = short * scatter
        sheet.wait_mean_true_long_s.loc[{"policy": name}] = long * scatter
    return sheet


def test_errors_of_size_and_shape(table, reduced):
    error = model_error.model_error(table, reduced)
    point = error.sel(parallelism="formula", closure="conservation", rate=30)
    simulated = table.wait_mean_s.sel(rate=30).mean("seed")
    np.testing.assert_allclose(point.wait_s.sel(estimate="value"), simulated)
    np.testing.assert_allclose(point.relative_wait.sel(estimate="value"), [1, 0.4, 1.2, 1], atol=1e-9)
    np.testing.assert_allclose(point.model_relative_wait, [1, 0.5, 1.25, 0.6])
    np.testing.assert_allclose(point.wait_ratio, simulated / [1, 0.5, 1.25, 0.6])
    np.testing.assert_allclose(point.wait_error, [1, 0.5, 1.25, 0.6] / simulated - 1)
    np.testing.assert_allclose(point.shape_error, [0, 0.25, 1.25 / 1.2 - 1, -0.4], atol=1e-9)


def test_intervals_are_of_paired_seeds(table, reduced):
    relative = model_error.model_error(table, reduced).relative_wait.sel(rate=30)
    low, high = (relative.sel(estimate=end) for end in ("low", "high"))
    np.testing.assert_allclose(low[:3], high[:3])  # proportional, seed by seed
    assert low.sel(policy="QBA") < 1 < high.sel(policy="QBA")


def test_no_steady_state_is_no_value(table, reduced):
    error = model_error.model_error(table, reduced)
    lost = error.sel(parallelism="matched", rate=34)
    for name in ("model_relative_wait", "wait_ratio", "wait_error", "shape_error"):
        assert lost[name].isnull().all(), name
        assert error[name].sel(parallelism="formula").notnull().all(), name
    assert not lost.ordered_right.any()


def test_order_counts_only_where_the_simulator_decides(table, reduced):
    at = model_error.model_error(table, reduced).sel(parallelism="formula", rate=30)
    decided = dict(zip(at.pair.values, at.decided.values))
    assert decided == {
        "FCFS, PSF": True, "FCFS, AA": True, "FCFS, QBA": False, "PSF, AA": True, "PSF, QBA": True, "AA, QBA": True,
    }  # fmt: skip
    wrong = {
        closure: at.pair.values[(at.decided & ~at.ordered_right.sel(closure=closure)).values].tolist()
        for closure in at.closure.values
    }
    assert wrong == {"mixture": ["FCFS, AA"], "conservation": []}  # only the second puts AA above FCFS


def test_waits_of_the_classes_are_relative_to_their_own_under_fcfs(table, reduced):
    relative = model_error.model_error(table, reduced).relative_class_wait.sel(rate=34, estimate="value")
    np.testing.assert_allclose(relative.sel(true_class="short"), [1, 0.2, 1.2, 1])
    np.testing.assert_allclose(relative.sel(true_class="long"), [1, 1.2, 0.9, 1])


def test_conserved_sum_weights_classes_with_their_load(table, reduced):
    # Loads .75 · 1 and .25 · 3, so shorts and longs weigh the same.
    conserved = model_error.model_error(table, reduced).conserved.sel(estimate="value", rate=30)
    np.testing.assert_allclose(conserved, [1, 0.7, 1.05, 1])


def test_comparison_needs_the_same_loads_and_all_policies(table, reduced):
    with pytest.raises(InputError, match=r"rates differ: table has \[30.0\] and reduced \[30.0, 34.0\]"):
        model_error.model_error(table.sel(rate=[30]), reduced)
    with pytest.raises(InputError, match="table lacks AA"):
        model_error.model_error(table.drop_sel(policy="AA"), reduced)


@pytest.fixture(scope="module")
def small_study() -> tuple[xr.Dataset, xr.Dataset]:
    policies = [qba.FCFS(), qba.PSF(), qba.AA(), qba.QBA()]
    table = qba.sweep(policies, rate=[28, 36], seeds=6, progress=False)
    return table, model.reduced_model([28, 36], seeds=6, progress=False)


def test_the_engine_and_the_model(small_study, tmp_path):
    error = model_error.model_error(*small_study)
    save(error, tmp_path / "error.nc", parameters={})  # every variable has units and a name
    assert list(error.closure.values) == list(CLOSURES)
    assert (error.wait_ratio.sel(parallelism="formula") > 10).all()
    high = error.sel(parallelism="formula", rate=36)
    assert high.model_relative_wait.sel(closure="conservation", policy="AA") > 1
    assert high.model_relative_wait.sel(closure="mixture", policy="AA") < 1
    psf = error.conserved.sel(policy="PSF", rate=36)
    assert psf.sel(estimate="high") < 1  # a queue that conserves work would have 1


# --- from a queue to the engine ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stepped() -> xr.Dataset:
    return model_steps.model_steps([0.9], seeds=8, horizon_s=150)


def test_steps_end_with_the_engine_given():
    config = qba.EngineConfig(kv_capacity=10_000)
    names = [step.name for step in model_steps.steps(config)]
    assert names == ["one server", "B/q servers", "+ prompts", "+ batch time", "+ KV limit"]
    assert model_steps.steps(config)[-1].config == config


def test_first_steps_are_the_queues_they_are_named_for(stepped):
    queues = stepped.sel(step=["one server", "B/q servers"])
    np.testing.assert_allclose(queues.concurrency, [1, 16], rtol=1e-3)
    assert queues.servers.values.tolist() == [1, 16]
    np.testing.assert_allclose(queues.capacity, queues.model_capacity.squeeze(), rtol=0.06)


def test_one_server_conserves_work_and_the_engine_does_not(stepped):
    kept = stepped.conserved_tokens.sel(step="one server")
    np.testing.assert_allclose(kept.sel(estimate="value"), 1, atol=0.03)
    assert stepped.conserved_tokens.sel(step="+ KV limit", policy="PSF", estimate="high") < 1


def test_the_model_holds_for_queues_and_breaks_with_prompts(stepped):
    ratio = stepped.wait_ratio.sel(policy="FCFS", closure="mixture").squeeze("utilisation")
    np.testing.assert_allclose(ratio.sel(step=["one server", "B/q servers"]), 1, atol=0.35)
    engines = ["+ prompts", "+ batch time", "+ KV limit"]
    assert (ratio.sel(step=engines) > 20).all()
    # The formula's n is to blame: with as many servers as requests really are in flight most of the gap is gone.
    assert (stepped.matched_ratio.squeeze("utilisation").sel(step=engines) < 6).all()


def test_steps_can_be_stored(stepped, tmp_path):
    save(stepped, tmp_path / "steps.nc", parameters={})


@pytest.mark.parametrize("share", [0, 1.0, "most"])
def test_impossible_utilisations_are_refused(share):
    with pytest.raises(InputError, match="utilisations = "):
        model_steps.model_steps([share], seeds=1)


# --- figures ----------------------------------------------------------------------------------------------------------


def rows_with(chart: alt.TopLevelMixin, *columns: str) -> list[dict]:
    """All rows of the chart's tables that have these columns; the chart is checked against the schema."""
    with alt.theme.enable(THEME):
        tables = chart.to_dict()["datasets"].values()
    return [row for table in tables for row in table if set(columns) <= row.keys()]


def test_shape_figure_draws_both_and_leaves_out_what_has_no_steady_state(table, reduced):
    error = model_error.model_error(table, reduced)
    chart = figures_of.shape(error.assign_attrs(replications=10))
    modelled = {(r["closure"], r["rate"], r["value"]) for r in rows_with(chart, "closure")}
    assert ("conservation", 34, 1.25) in modelled and ("mixture", 30, 0.75) in modelled
    assert all(r["value"] is not None for r in rows_with(chart, "closure"))
    simulated = [r["value"] for r in rows_with(chart, "low", "high")]
    assert min(simulated) == pytest.approx(0.4) and max(simulated) == pytest.approx(1.2)


def test_ratio_figure_shows_the_size_and_the_conserved_sum(table, reduced):
    error = model_error.model_error(table, reduced)
    chart = figures_of.size(error, "conservation")
    ratios = [r["ratio"] for r in rows_with(chart, "ratio") if r["policy"] == "AA" and r["rate"] == 30]
    wanted = error.wait_ratio.sel(closure="conservation", policy="AA", rate=30)
    assert ratios == pytest.approx(wanted.values, rel=1e-4)
    conserved = [r["value"] for r in rows_with(chart, "low", "high") if r["policy"] == "PSF"]
    assert conserved == pytest.approx([0.7, 0.7])
    with pytest.raises(InputError, match="no closure 'fluid'"):
        figures_of.size(error, "fluid")


def test_steps_figure_shows_every_step_and_policy(stepped):
    chart = figures_of.steps(stepped)
    drawn = {(r["step"], r["policy"]): r["ratio"] for r in rows_with(chart, "ratio")}
    wanted = stepped.wait_ratio.sel(closure="mixture").squeeze("utilisation")
    assert len(drawn) == wanted.size
    for (step, policy), ratio in drawn.items():
        assert ratio == pytest.approx(wanted.sel(step=step, policy=policy).item(), rel=1e-4)
