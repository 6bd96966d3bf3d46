"""The published figures: which result files each one shows, how it is drawn and what it says; written as SVG and PNG.

To add a figure, write its function in a module of this package and name it in `FIGURES`: drawing, report and tests take
it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import vl_convert
from altair.utils import schemapi

from qba.claims import read_scorecard
from qba.errors import InputError
from qba.figures import azure, calibration, labels, model, paper, precision, ratios, robustness
from qba.figures.style import THEME
from qba.paths import results_dir as default_results_dir
from qba.results import atomic_write, load

PNG_SCALE = 2
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
"""The version that this Altair writes; the renderer carries several."""


class Figure(NamedTuple):
    """One published figure."""

    datasets: tuple[str, ...]
    """Result files without their ending; the function takes their contents in this order."""
    draw: Callable[..., alt.TopLevelMixin]
    name: str
    """What it is called in text."""
    caption: str
    """What one sees, in plain words."""
    interactive: bool = True
    """Whether the report shows it with tooltips, which costs space there, or as a picture from the folder beside it."""
    png_scale: float = PNG_SCALE
    """Pixels of the PNG for each one of the SVG; less for a large figure, so that its file stays below a megabyte."""


FIGURES: dict[str, Figure] = {
    "fig2a": Figure(
        ("theory",), paper.model_mean, "Fig. 2a",
        "Mean wait in the reduced queueing model. All prediction-guided policies wait less than FCFS, PSF least; AA "
        "and QBA nearly coincide. The scale is logarithmic, so equal distances are equal ratios.",
    ),
    "fig2b": Figure(
        ("load_sweep",), paper.load_mean, "Fig. 2b",
        "Mean wait in the simulator (logarithmic scale). The bands hold the scatter between seeds, which all "
        "policies share: the seeds are paired, so differences between policies are surer than the bands suggest.",
    ),
    "fig2c": Figure(
        ("load_sweep",), paper.load_tail, "Fig. 2c",
        "99th percentile of the wait in the simulator (logarithmic scale): the price of serving short requests "
        "first.",
    ),
    "fig3a": Figure(
        ("sensitivity",), paper.quota_mean, "Fig. 3a",
        "Mean wait against QBA's quota k, the number of short admissions that earn one promotion. A small quota acts "
        "like AA, a large one like PSF.",
    ),
    "fig3b": Figure(
        ("sensitivity",), paper.quota_tail, "Fig. 3b",
        "99th percentile of the wait against the quota: QBA's lowest tail lies at a moderate quota, FCFS's stays "
        "below it.",
    ),
    "fig3c": Figure(
        ("sensitivity",), paper.aging_tail, "Fig. 3c",
        "99th percentile of the wait against the quantile of past waits beyond which a request counts as aged. At "
        "1.0 hardly anything ages, and both policies lose their protection of long requests.",
    ),
    "fig4": Figure(
        ("prediction_errors",), partial(paper.prediction_errors, direction="short_to_long"), "Fig. 4",
        "Short requests taken for long ones. A few of them suffice to give true-short requests a long tail under PSF "
        "and QBA.",
    ),
    "fig5": Figure(
        ("prediction_errors",), partial(paper.prediction_errors, direction="long_to_short"), "Fig. 5",
        "Long requests taken for short ones. PSF's mean and short tail hardly move while its long tail grows; QBA's "
        "long tail falls, at the expense of the short ones and of the mean.",
    ),
    "horizon": Figure(
        ("horizon",), precision.horizon, "Horizon",
        "Mean and P99 wait against the duration of the arrivals. Below what the engine carries the waits level off, the "
        "tail later than the mean; above it, and so at the paper's reference load of 32 requests/s, they grow for as long "
        "as requests arrive: those numbers belong to runs of 100 seconds.",
        interactive=False,
    ),
    "seeds": Figure(
        ("precision",), precision.half_widths, "Seeds",
        "How precisely a number of seeds tells a wait, and its ratio to FCFS's. With the same seeds under both policies "
        "the ratio is known several times better than either mean.",
        interactive=False,
    ),
    "table2": Figure(
        ("azure_standin",), azure.table2, "Table II",
        "The paper's production-trace study on a stand-in for its trace, which is not to be had: see the subtitle. "
        "Each dot is one window of traffic.",
        interactive=False,
    ),
    "azure_2023": Figure(
        ("azure_2023",), azure.azure_2023, "Azure 2023",
        "The same study on real traces. Where long means a long response, serving the short ones first gains next to "
        "nothing: most of the work in these traces lies in the prompts. Where long means many tokens in all, the "
        "gains are of the paper's order.",
        interactive=False,
    ),
    "shape": Figure(
        ("model_error",), model.shape, "Model and simulator",
        "Mean wait relative to FCFS's, which is what the reduced model is for: the simulator and each closure.",
        interactive=False,
    ),
    "size": Figure(
        ("model_error",), model.size, "Size of the model's waits",
        "How many times longer the simulator's mean waits are than the reduced model's.",
        interactive=False,
    ),
    "steps": Figure(
        ("model_steps",), model.steps, "From one server to the engine",
        "The same ratio for engines between a single server and ours, at equal shares of each one's own capacity.",
        interactive=False,
    ),
    "work_by_response": Figure(
        ("azure_labels",), labels.work_by_response, "Work and response",
        "What a long response says about the work behind a request: next to nothing in the public traces of 2023, much "
        "in the synthetic workload.",
        interactive=False,
    ),
    "gain_by_dependence": Figure(
        ("azure_labels", "azure_dependence"), labels.gain_by_dependence, "Gain and dependence",
        "PSF's change of the mean wait where the same lengths are dealt out with more or less dependence, with the "
        "traces as they are. What decides is the share of all tokens that the requests labelled long hold.",
        interactive=False,
    ),
    "gain_by_label": Figure(
        ("azure_labels",), labels.gain_by_label, "Which label",
        "The same policies with labels by response, by total tokens, by prompt and by time alone: where prompts make "
        "the work, the prompt is the better label, and needs no predictor.",
        interactive=False,
    ),
    "excerpt_fit": Figure(
        ("azure_excerpt",), labels.excerpt_fit, "Stand-in and excerpt",
        "The stand-in for the week of 2024 against a public excerpt of it.",
        interactive=False,
    ),
    "calibration": Figure(
        ("calibration",), calibration.residuals, "Calibration",
        "How far each family of workloads, at its best, stays from each of the paper's numbers.",
        interactive=False,
    ),
    "profiles": Figure(
        ("calibration",), calibration.profiles, "Profiles",
        "How the best fit worsens as one parameter is held.",
        interactive=False,
    ),
    "hold_outs": Figure(
        ("calibration",), calibration.hold_outs, "Hold-outs",
        "Rows that the fit was not shown, as it predicts them.",
        interactive=False,
    ),
    "robustness": Figure(
        ("robustness",), robustness.heat_map, "Robustness",
        "Verdict on every claim under each reading of what the paper leaves open.",
        interactive=False,
        png_scale=1.5,
    ),
    "scorecard": Figure(
        ("scorecard",), ratios.scorecard, "Scorecard",
        "Each number of the paper against ours; 1 is the same. Rows that need data the machine does not have show "
        "the value of the stand-in.",
    ),
}  # fmt: skip
"""Published figures by the name of their files, in the order of the paper."""


def reader(results_dir: str | Path | None = None) -> Callable[[str], Any]:
    """A function from a result file's name, without ending, to its content; it reads each file once.

    results_dir: default: `qba.paths.results_dir`.
    """
    folder = default_results_dir() if results_dir is None else Path(results_dir)

    @cache
    def read(name: str) -> Any:
        return read_scorecard(folder) if name == "scorecard" else load(folder / f"{name}.nc")

    return read


def draw(name: str, read: Callable[[str], Any]) -> alt.TopLevelMixin:
    """The chart of one published figure from what `reader` reads.

    Raises InputError for an unknown figure and where a file is missing or damaged.
    """
    if name not in FIGURES:
        raise InputError(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    figure = FIGURES[name]
    with schemapi.debug_mode(False):  # without checks against Vega-Lite's schema, which a test makes once and for all
        return figure.draw(*(read(dataset) for dataset in figure.datasets))


def draw_all(results_dir: str | Path | None = None, names: Iterable[str] | None = None) -> list[Path]:
    """Write the published figures as figures/<name>.svg and .png in the results folder, from its datasets alone.

    names: which; default: all. The same datasets give the same bytes. Nothing is written unless all could be drawn.
    Raises InputError for a missing or damaged dataset, an unknown figure, or a folder that cannot be written.
    """
    folder = default_results_dir() if results_dir is None else Path(results_dir)
    read = reader(folder)
    files: dict[Path, str | bytes] = {}
    for name in FIGURES if names is None else names:
        svg = to_svg(draw(name, read))
        files[folder / "figures" / f"{name}.svg"] = svg
        files[folder / "figures" / f"{name}.png"] = vl_convert.svg_to_png(svg, scale=FIGURES[name].png_scale)
    return [atomic_write(path, content) for path, content in files.items()]


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The chart as Vega-Lite, in the figures' theme. It is not checked against the schema again, which takes long."""
    with alt.theme.enable(THEME):
        return chart.to_dict(validate=False)


def to_svg(chart: alt.TopLevelMixin) -> str:
    """The chart as SVG, in the figures' theme."""
    return vl_convert.vegalite_to_svg(specification(chart), vl_version=VEGA_LITE).rstrip("\n") + "\n"
