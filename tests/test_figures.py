"""Figures: they show the datasets' numbers, come out the same each time, and say clearly what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest
import xarray as xr
from scipy import stats
from small_results import (
    POLICIES,
    make_azure_2023,
    make_azure_standin,
    make_load_sweep,
    make_prediction_errors,
    make_scorecard,
    make_sensitivity,
    make_theory,
    write_results,
)

import qba
from qba import figures
from qba.claims import STATUSES
from qba.errors import InputError
from qba.figures import precision as figure_of
from qba.figures import style
from qba.figures.azure import WINDOWS_SHOWN, relative_change
from qba.figures.engine import STEPS
from qba.figures.ratios import STATUS_STYLE
from qba.precision import horizon_study, seeds_study


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results"))


# --- reading a chart --------------------------------------------------------------------------------------------------


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The chart as Vega-Lite, checked against the schema, theme included."""
    with alt.theme.enable(style.THEME):
        return chart.to_dict()


def tables(chart: alt.TopLevelMixin) -> list[list[dict[str, Any]]]:
    return list(specification(chart).get("datasets", {}).values())


def table_with(chart: alt.TopLevelMixin, *columns: str) -> list[dict[str, Any]]:
    """The one table of the chart that has these columns."""
    (found,) = [t for t in tables(chart) if t and set(columns) <= t[0].keys()]
    return found


def subtitle(chart: alt.TopLevelMixin) -> str:
    return " ".join(specification(chart)["title"]["subtitle"])


def column(rows: list[dict[str, Any]], name: str, **where: Any) -> list[Any]:
    return [row[name] for row in rows if all(row[key] == value for key, value in where.items())]


def close(values: Any) -> Any:
    """Equal up to the five digits that a chart keeps."""
    return pytest.approx(values, rel=1e-4)


# --- Fig. 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "variable"), [("load_mean", "wait_mean_s"), ("load_tail", "wait_p99_s")])
def test_load_figures_show_mean_and_student_interval(function: str, variable: str):
    sweep = make_load_sweep(seeds=5)
    drawn = table_with(getattr(figures, function)(sweep), "mean", "low", "high")
    assert len(drawn) == len(POLICIES) * 3
    for policy in POLICIES:
        values = sweep[variable].sel(policy=policy).values
        half = stats.t.ppf(0.975, 4) * values.std(axis=1, ddof=1) / np.sqrt(5)
        assert column(drawn, "mean", policy=policy) == close(values.mean(axis=1))
        assert column(drawn, "high", policy=policy) == close(values.mean(axis=1) + half)
        # On the logarithmic axis a band that reaches zero ends at half the least mean.
        floor = float(sweep[variable].mean("seed").min()) / 2
        assert column(drawn, "low", policy=policy) == close(np.maximum(values.mean(axis=1) - half, floor))


def test_one_seed_draws_no_band():
    chart = figures.load_mean(make_load_sweep(seeds=1))
    assert set(column(table_with(chart, "mean"), "low")) == {None}
    assert "one seed" in subtitle(chart)


def test_axis_titles_come_from_the_dataset():
    sweep = make_load_sweep()
    sweep.wait_mean_s.attrs.update(long_name="waiting in vain", units="h")
    text = json.dumps(specification(figures.load_mean(sweep)))
    assert "Waiting in vain (h)" in text and "Rate (requests/s)" in text


def test_model_shows_the_chosen_closure_and_parallelism():
    theory = make_theory()
    drawn = table_with(figures.model_mean(theory, "reclassify", "formula"), "wait")
    expected = theory.wait_mean_s.sel(closure="reclassify", parallelism="formula")
    for policy in POLICIES:
        assert column(drawn, "wait", policy=policy) == close(expected.sel(policy=policy).values)
        assert column(drawn, "extrapolated", policy=policy) == [False, False, policy in ("AA", "QBA")]
    assert "n = 10" in subtitle(figures.model_mean(theory))


def test_model_leaves_out_infinite_waits_and_says_so():
    chart = figures.model_mean(make_theory(), parallelism="matched")
    assert set(column(table_with(chart, "wait"), "rate")) == {26.0, 33.0}
    assert "infinite, so not drawn, from 40 requests/s" in subtitle(chart)
    assert "infinite" not in subtitle(figures.model_mean(make_theory()))


def test_a_label_that_is_not_there_is_named():
    with pytest.raises(InputError, match="no closure 'fluid' in the dataset; there are mixture, reclassify"):
        figures.model_mean(make_theory(), closure="fluid")


# --- Figs. 3 to 5 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "variable"), [("quota_mean", "wait_mean_s"), ("quota_tail", "wait_p99_s")])
def test_quota_figures_hold_the_aging_quantile(function: str, variable: str):
    sensitivity = make_sensitivity()
    drawn = table_with(getattr(figures, function)(sensitivity), "mean")
    for policy in ("FCFS", "AA", "QBA"):
        expected = sensitivity[variable].sel(policy=policy, aging_quantile=0.8).mean("seed")
        assert column(drawn, "quota", policy=policy) == [2, 5, 8]
        assert column(drawn, "mean", policy=policy) == close(expected.values)
        assert set(column(drawn, "dashed", policy=policy)) == {policy != "QBA"}


def test_aging_figure_holds_the_quota():
    sensitivity = make_sensitivity()
    drawn = table_with(figures.aging_tail(sensitivity), "mean")
    for policy in ("FCFS", "AA", "QBA"):
        expected = sensitivity.wait_p99_s.sel(policy=policy, quota=5).mean("seed")
        assert column(drawn, "mean", policy=policy) == close(expected.values)
        assert set(column(drawn, "dashed", policy=policy)) == {policy == "FCFS"}
    with pytest.raises(InputError, match="no quota 5 in the dataset; there are 2, 8"):
        figures.aging_tail(sensitivity.sel(quota=[2, 8]))


@pytest.mark.parametrize("direction", ["short_to_long", "long_to_short"])
def test_error_figures_have_a_panel_for_mean_and_each_tail(direction: str):
    errors = make_prediction_errors()
    chart = figures.prediction_errors(errors, direction)
    names = [panel["data"]["name"] for panel in specification(chart)["hconcat"]]
    drawn = specification(chart)["datasets"]
    for name, variable in zip(names, ("wait_mean_s", "wait_p99_true_short_s", "wait_p99_true_long_s"), strict=True):
        expected = errors[variable].sel(direction=direction, policy="QBA").mean("seed")
        assert column(drawn[name], "mean", policy="QBA") == close(expected.values)
    with pytest.raises(InputError, match="no direction 'both'"):
        figures.prediction_errors(errors, "both")


# --- production traces ------------------------------------------------------------------------------------------------


def test_table2_shows_windows_quantiles_and_the_tables_numbers():
    study = make_azure_standin()
    chart = figures.table2(study)
    assert "stand-in for a trace" in subtitle(chart)
    boxes = [t for t in tables(chart) if "q50" in t[0]]
    assert len(boxes) == 2
    for policy in POLICIES:
        waits = study.wait_mean_s.sel(policy=policy).values
        tails = study.wait_p99_true_long_s.sel(policy=policy).values
        for values, number in ((waits, waits.mean()), (tails, np.median(tails))):
            (row,) = [row for box in boxes for row in box if row["policy"] == policy and row["number"] == close(number)]
            shown = [row[name] for name in ("q05", "q25", "q50", "q75", "q95")]
            assert shown == close(np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)))
        windows = table_with(chart, "window")
        assert column(windows, "mean", policy=policy) == close(waits)
        assert column(windows, "tail", policy=policy) == close(tails)


def test_table2_of_very_many_windows_draws_no_dots():
    chart = figures.table2(make_azure_standin(windows=WINDOWS_SHOWN + 1))
    assert not any("window" in t[0] for t in tables(chart))


def test_azure_2023_shows_the_pooled_change_against_fcfs():
    study = make_azure_2023()
    chart = figures.azure_2023(study)
    drawn = [t for t in tables(chart) if "low" in t[0]]
    assert len(drawn) == 2
    for label, table in zip(study.label.values, drawn, strict=True):
        for trace in study.trace.values:
            wait = study.wait_mean_s.sel(label=label, trace=trace)
            for policy in ("PSF", "QBA"):
                expected = wait.sel(policy=policy).sum() / wait.sel(policy="FCFS").sum() - 1
                assert column(table, "change", trace=trace, policy=policy) == close([float(expected)])
    with pytest.raises(InputError, match="no policy 'FCFS' in the dataset"):
        figures.azure_2023(study.sel(policy=["PSF", "QBA"]))


def test_interval_of_the_change_covers_the_truth_and_shrinks_where_windows_agree():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        base = rng.gamma(2.0, 1.0, 60)
        wait = xr.DataArray([base, 0.7 * base * rng.normal(1.0, 0.1, 60)], dims=("policy", "window"))
        _, low, high = relative_change(wait.assign_coords(policy=["FCFS", "PSF"]))
        covered += bool(low.sel(policy="PSF") < -0.3 < high.sel(policy="PSF"))
        assert float(high.sel(policy="FCFS") - low.sel(policy="FCFS")) == pytest.approx(0, abs=1e-12)
    # 95 % of 200, with four standard deviations of room below.
    assert covered >= 178


# --- the engine -------------------------------------------------------------------------------------------------------


def make_batches(n: int, gap_after: int | None = None) -> xr.Dataset:
    rng = np.random.default_rng(3)
    duration = np.full(n, 0.004)
    start = np.arange(n) * 0.004
    if gap_after is not None:
        start[gap_after + 1 :] += 1.0
    counts = {
        name: ("batch", rng.integers(1, 60, n))
        for name in ("decode_tokens", "prefill_tokens", "live_kv_tokens", "waiting_short", "waiting_long")
    }
    promotions = ("batch", (np.arange(n) % 10 == 0).astype(int))
    return xr.Dataset(
        {"time_s": ("batch", start), "duration_s": ("batch", duration), "promotions": promotions} | counts
    )


def test_timeline_shows_each_batch_where_they_are_few():
    batches = make_batches(50)
    chart = figures.batch_timeline(batches)
    assert "each step is one batch" in subtitle(chart)
    tokens = table_with(chart, "phase")
    assert column(tokens, "value", phase="decode") == [*batches.decode_tokens.values, 0]
    assert column(tokens, "value", phase="prefill") == [*batches.prefill_tokens.values, 0]
    assert column(table_with(chart, "predicted"), "value", predicted="long") == [*batches.waiting_long.values, 0]
    assert column(table_with(chart, "promotions"), "time_s") == close(batches.time_s.values[::10])


def test_timeline_joins_batches_and_stays_within_the_row_limit():
    batches = make_batches(20_000)
    chart = figures.batch_timeline(batches)
    assert "each step joins 50 batches" in subtitle(chart)
    assert max(map(len, tables(chart))) <= 2 * (STEPS + 1) < style.MAX_ROWS
    parts = batches.coarsen(batch=50)
    tokens = table_with(chart, "phase")
    assert column(tokens, "value", phase="decode")[:-1] == close(parts.mean().decode_tokens.values)
    assert column(table_with(chart, "predicted"), "value", predicted="short")[:-1] == list(
        parts.max().waiting_short.values
    )
    assert sum(column(table_with(chart, "promotions"), "promotions")) == 2000


def test_timeline_falls_to_zero_while_the_engine_is_idle():
    tokens = table_with(figures.batch_timeline(make_batches(20, gap_after=9)), "phase")
    rows = [row for row in tokens if row["phase"] == "decode"]
    assert len(rows) == 22
    assert rows[10] == {"time_s": close(0.04), "phase": "decode", "value": 0}
    assert rows[11]["time_s"] == close(1.04) and rows[11]["value"] > 0


def test_timeline_of_a_range_keeps_its_last_level():
    batches = make_batches(100)
    chart = figures.batch_timeline(batches, start_s=0.1, end_s=0.2)
    tokens = table_with(chart, "phase")
    times = column(tokens, "time_s", phase="decode")
    assert min(times) >= 0.1 and len(times) == 26
    assert column(tokens, "value", phase="decode")[-1] == column(tokens, "value", phase="decode")[-2] > 0
    with pytest.raises(InputError, match="no batch starts between start_s = 5 and end_s = 6"):
        figures.batch_timeline(batches, start_s=5, end_s=6)


def test_timeline_draws_a_real_run_with_its_limits():
    config = qba.EngineConfig(token_budget=200, kv_capacity=4000, kv_safety=0.5)
    requests = qba.synthetic(rate=30, seed=0, horizon_s=2)
    requests = requests.replace(prompt_tokens=np.minimum(requests.prompt_tokens, 1000))
    for policy in (qba.PSF(), qba.QBA()):
        _, batches = qba.simulate(requests, policy, config, record=True)
        chart = figures.batch_timeline(batches, config)
        limits = {row["text"]: row["limit"] for t in tables(chart) if t and "limit" in t[0] for row in t}
        assert limits == {"budget": 200, "KV-safe": 2000, "capacity": 4000}
        assert "<svg" in figures.to_svg(chart)


def test_lengths_count_every_request_and_show_the_threshold():
    requests = qba.synthetic(rate=30, seed=0, horizon_s=10)
    chart = figures.lengths(requests)
    histograms = [t for t in tables(chart) if "until" in t[0]]
    assert len(histograms) == 2
    for table in histograms:
        assert sum(column(table, "requests")) == len(requests)
        assert sum(column(table, "requests", **{"class": "long"})) == requests.true_long.sum()
    threshold = requests.response_tokens[~requests.true_long].max()
    assert f"responses above {threshold:,} tokens are long" in subtitle(chart)
    other = requests.replace(true_long=requests.prompt_tokens > 500)
    assert "not split by response length" in subtitle(figures.lengths(other))


# --- how long and how many -------------------------------------------------------------------------------------------


def test_horizon_figure_has_a_panel_for_each_load_and_statistic():
    study = horizon_study([20.0, 60.0], [5.0, 10.0, 40.0], seeds=20, simulated_s=200, progress=False)
    chart = figure_of.horizon(study)
    drawn = [t for t in tables(chart) if "low" in t[0]]
    expected = [study[name].sel(rate=rate) for name in ("wait_mean_s", "wait_p99_s") for rate in (20, 60)]
    assert len(drawn) == 4
    for waits in expected:
        values = waits.sel(estimate="value", policy="QBA").values
        [table] = [t for t in drawn if column(t, "value", policy="QBA") == close(values)]
        assert column(table, "horizon_s", policy="QBA") == [5, 10, 40]
        assert column(table, "high", policy="QBA") == close(waits.sel(estimate="high", policy="QBA").values)
    assert "mean of 20 seeds, fewer at long horizons (at least 16)" in subtitle(chart)
    assert "the engine carries" in subtitle(chart) and "vertical line" not in subtitle(chart)  # at 100 s
    quiet = study.assign(capacity=study.capacity * np.nan)
    assert "no load is above capacity" in subtitle(figure_of.horizon(quiet))


def test_half_width_figure_compares_paired_with_other_seeds():
    study = seeds_study(34, 10, [10, 100], progress=False)
    chart = figure_of.half_widths(study)
    drawn = [t for t in tables(chart) if "half_width" in t[0]]
    assert len(drawn) == 6  # three policies, mean and tail
    expected = study.half_width.sel(statistic="wait_p99_s", policy="QBA")
    [table] = [
        t for t in drawn if column(t, "half_width", quantity="the mean") == close(expected.sel(quantity="mean").values)
    ]
    for pairing in ("same seeds", "other seeds"):
        values = expected.sel(quantity=f"ratio to FCFS, {pairing}").values
        assert column(table, "half_width", quantity=f"its ratio to FCFS, {pairing}") == close(values)
    assert "at 34 requests/s, from 10 seeds" in subtitle(chart)


# --- scorecard --------------------------------------------------------------------------------------------------------


def test_scorecard_shows_ratios_with_their_intervals():
    ends = {"N01": (0.76, 0.96), "N02": (6.0, 9.0), "N18": (-51.0, -45.0)}
    rows = [row | dict(zip(("low", "high"), ends.get(row["id"], (None, None)))) for row in make_scorecard()]
    chart = figures.scorecard(rows)
    drawn = table_with(chart, "ratio")
    assert column(drawn, "row") == [f"{id}  claim <{id}>" for id in ("N01", "N02", "N18")]
    assert column(drawn, "ratio") == close([1.05, 0.75, 48 / 31])
    assert column(drawn, "low") == close([0.95, 0.6, 45 / 31])
    assert column(drawn, "high") == close([1.2, 0.9, 51 / 31])
    assert "not drawn: N24, N25" in subtitle(chart)
    zones = sorted(row["to"] for t in tables(chart) if "to" in t[0] for row in t)
    assert zones == [1.15, 1.3]


def test_a_number_without_interval_has_no_whisker():
    drawn = table_with(figures.scorecard([row | {"low": None, "high": None} for row in make_scorecard()]), "ratio")
    assert set(column(drawn, "low")) == set(column(drawn, "high")) == {None}


def test_every_status_has_a_style():
    assert tuple(STATUS_STYLE) == STATUSES


# --- what all figures share -------------------------------------------------------------------------------------------


def test_policies_keep_their_colour_and_mark_and_new_ones_get_their_own():
    known = style.policy_styles(["QBA", "FCFS"])
    assert known == {name: style.POLICY_STYLE[name] for name in ("FCFS", "QBA")}
    styles = style.policy_styles(["QBA", "mine", "QBA(quota=3, aging_quantile=0.8)", "PSF", "FCFS", "AA"])
    assert list(styles) == [*POLICIES, "mine", "QBA(quota=3, aging_quantile=0.8)"]
    assert len({color for color, _ in styles.values()}) == len({mark for _, mark in styles.values()}) == 6


def test_a_policy_of_the_readers_own_is_drawn():
    sweep = make_load_sweep().assign_coords(policy=["FCFS", "PSF", "AA", "mine"])
    assert ">mine</text>" in figures.to_svg(figures.load_mean(sweep))


def test_rows_keep_five_digits_and_turn_what_is_not_finite_into_none():
    rows = style.rows({"a": np.array([1.23456789, np.nan, np.inf]), "b": np.array([1, 2, 3]), "c": ["x", "y", "z"]})
    assert rows == [{"a": 1.2346, "b": 1, "c": "x"}, {"a": None, "b": 2, "c": "y"}, {"a": None, "b": 3, "c": "z"}]


def test_more_rows_than_altair_draws_are_refused():
    with pytest.raises(InputError, match="5,001 rows of x; Altair draws at most 5,000"):
        style.data({"x": np.arange(5001)})
    assert len(style.data({"x": np.arange(5000)}).values) == 5000


def test_log_axis_has_ticks_inside_its_domain():
    axis = style.log_axis(xr.DataArray([0.0, np.nan, 0.3, 42.0]))
    assert axis["scale"].domain == [0.273, 46.2]  # a tenth beyond both ends, three digits
    assert axis["axis"].values == [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]


def test_use_sets_up_a_notebook():
    renderer, theme, shown = alt.renderers.active, alt.theme.active, xr.get_options()["display_style"]
    try:
        figures.use()
        assert (alt.renderers.active, alt.theme.active) == ("svg", style.THEME)
        assert xr.get_options()["display_style"] == "text"
        bundle = figures.load_mean(make_load_sweep())._repr_mimebundle_()
        assert style.FONT.split(",")[0] in bundle["image/svg+xml"]
    finally:
        alt.renderers.enable(renderer)
        alt.theme.enable(theme)
        xr.set_options(display_style=shown)


# --- published figures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_published_figure_obeys_the_schema(name: str, results_folder: Path):
    figure, read = figures.FIGURES[name], figures.reader(results_folder)
    assert specification(figure.draw(*(read(dataset) for dataset in figure.datasets))) == figures.specification(
        figures.draw(name, read)
    )


@pytest.mark.parametrize("name", figures.FIGURES)
def test_published_figures_draw_and_follow_the_schema(name: str, results_folder: Path):
    chart = figures.draw(name, figures.reader(results_folder))
    assert specification(chart)["config"]["font"] == style.FONT
    assert max(map(len, tables(chart))) <= style.MAX_ROWS
    svg = figures.to_svg(chart)
    assert svg.startswith("<svg") and svg.endswith("</svg>\n")
    assert "NaN" not in svg and "undefined" not in svg


def test_drawing_twice_gives_the_same_bytes(results_folder: Path, tmp_path: Path):
    first = {path.name: path.read_bytes() for path in figures.draw_all(results_folder)}
    assert sorted(first) == sorted(f"{name}.{ending}" for name in figures.FIGURES for ending in ("svg", "png"))
    assert all(content.startswith(b"\x89PNG") for name, content in first.items() if name.endswith("png"))
    again = figures.draw_all(write_results(tmp_path))
    assert {path.parent for path in again} == {tmp_path / "figures"}
    assert {path.name: path.read_bytes() for path in again} == first


def test_a_missing_dataset_is_named_and_nothing_is_written(tmp_path: Path):
    write_results(tmp_path)
    (tmp_path / "scorecard.json").unlink()  # of the last figure
    with pytest.raises(InputError, match=r"scorecard\.json: no such file; make reproduce writes the results"):
        figures.draw_all(tmp_path)
    assert not (tmp_path / "figures").exists()
    (tmp_path / "theory.nc").unlink()
    with pytest.raises(InputError, match=r"theory\.nc: no such file"):
        figures.draw_all(tmp_path, names=["fig2a"])


def test_an_unknown_figure_is_refused(results_folder: Path):
    with pytest.raises(InputError, match="no figure 'fig9'; there are fig2a, fig2b"):
        figures.draw_all(results_folder, names=["fig9"])


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1", "is not JSON"), ("{}", "is not a scorecard"), ('[{"id": "N01"}]', "is not a scorecard")],
)
def test_a_damaged_scorecard_is_refused(text: str, message: str, tmp_path: Path):
    (tmp_path / "scorecard.json").write_text(text)
    with pytest.raises(InputError, match=message):
        figures.draw_all(tmp_path, names=["scorecard"])


def test_a_scorecard_that_is_no_file_is_refused(tmp_path: Path):
    (tmp_path / "scorecard.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        figures.draw_all(tmp_path, names=["scorecard"])
