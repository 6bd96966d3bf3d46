"""The report: one HTML page with every figure and every row of the scorecard. It needs no network.

The paper's figures are interactive; those beyond it are pictures from the results folder, to keep the page small.

Vega comes with the renderer (vl-convert) and stands in the page once, beside the figures as its specifications. The
page's own content policy forbids the browser to fetch anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Any

import vl_convert
import xarray as xr

from qba import claims
from qba.figures.published import FIGURES, VEGA_LITE, Figure, draw, reader, specification
from qba.figures.ratios import STATUS_STYLE
from qba.paths import results_dir as default_results_dir
from qba.results import atomic_write
from qba.tables import table2_intervals

FILE = "report.html"
PAPER = "Quota-Based Aging for Prediction-Guided Scheduling in LLM Serving"

STYLE = """
body { margin: 0 auto; max-width: 1180px; padding: 0 16px 48px; color: #222; background: #fff;
       font: 16px/1.5 "Liberation Sans", Arial, Helvetica, sans-serif; }
h1 { font-size: 1.7em; line-height: 1.25; margin: 1em 0 .3em; }
h2 { font-size: 1.25em; margin: 2.2em 0 .6em; padding-bottom: .2em; border-bottom: 1px solid #ccc; }
h3 { font-size: 1em; margin: 1.6em 0 .4em; }
p { max-width: 46em; }
.counts { display: flex; flex-wrap: wrap; gap: 10px; padding: 0; margin: 1em 0; list-style: none; }
.counts li { border: 1px solid #ccc; border-left: 6px solid var(--color); padding: 4px 14px; }
.counts b { font-size: 1.5em; display: block; line-height: 1.2; }
.figures { display: flex; flex-wrap: wrap; gap: 28px 24px; align-items: flex-start; }
figure { margin: 0; max-width: 100%; min-width: min(340px, 100%); }
figcaption { width: 0; min-width: 100%; font-size: .875em; color: #444; }
.chart svg, figure img { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875em; line-height: 1.35; }
th, td { padding: 5px 9px; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #999; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.text { min-width: 15em; }
.note { min-width: 15em; color: #444; }
.status { white-space: nowrap; font-weight: bold; }
.status::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .45em;
                  background: var(--color); border-radius: 50%; }
code { font-size: .92em; overflow-wrap: anywhere; }
"""

# The charts' data lie in the page, so nothing but inline code and styles is allowed; Vega compiles its expressions.
PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src 'self' file: data: blob:">
<title>Quota-based aging, reproduced</title>
<style>$style</style>
</head>
<body>
<h1>Quota-based aging, reproduced</h1>
$body
<script>$vega</script>
<script id="charts" type="application/json">$charts</script>
<script>
const charts = JSON.parse(document.getElementById("charts").textContent);
for (const [name, spec] of Object.entries(charts.specs))
  vegaEmbed("#chart-" + name, spec, { mode: "vega-lite", renderer: "svg", config: charts.config, actions: false });
</script>
</body>
</html>
""")

INTRODUCTION = """
<p>The figures, the table and every checked claim of the paper <cite>$paper</cite>, computed anew by the package
<code>qba</code>. It simulates a server of large language models that batches requests token by token and compares four
ways of choosing the next waiting request: first come, first served (FCFS); predicted-short first (PSF); aggressive
aging (AA); quota-based aging (QBA), the paper's proposal, which lets one long-waiting long request go ahead for every
k short ones.</p>
<p>Point at a mark to read its values. Everything here comes from the result files beside this page, which needs no
network.</p>
<noscript><p>The charts need JavaScript; the same figures lie as pictures in the folder <code>figures</code>.</p>
</noscript>
"""

ABBREVIATIONS = """
<p>W is the mean waiting time, P99 the 99th percentile of the waiting time, S99 and L99 the same over true-short and
over true-long requests; the interval is our mean's, over paired seeds or, on the stand-in, over windows. A number is reproduced within 15 % of the paper's and close within
30 %; the distance is counted in standard errors of both, since the paper averages over chance as well. A statement is
reproduced if it holds at 95 % confidence at every point that it speaks of, close if at 80 % of them or more; its
tightest comparison stands beside it, the paired difference with its interval.</p>
"""


def write_report(results_dir: str | Path | None = None) -> Path:
    """Write report.html into the results folder, from its datasets and scorecard alone; they decide its bytes.

    results_dir: default: `qba.paths.results_dir`.

    Raises InputError where a file is missing, damaged or cannot be written.
    """
    folder = default_results_dir() if results_dir is None else Path(results_dir)
    return atomic_write(folder / FILE, report(reader(folder)))


def report(read: Callable[[str], Any]) -> str:
    """The page as text. read: from `qba.figures.reader`."""
    rows = read("scorecard")
    specs = {name: specification(draw(name, read)) for name, figure in FIGURES.items() if figure.interactive}
    for spec in specs.values():
        config = spec.pop("config")  # the theme, the same in all
        del spec["$schema"]  # an address
    body = [
        Template(INTRODUCTION).substitute(paper=escape(PAPER)),
        _counts(rows),
        "<h2>Figures</h2>",
        _figures(),
        '<h2 id="scorecard">Scorecard</h2>',
        ABBREVIATIONS,
        "<h3>Numbers</h3>",
        _numbers(rows),
        "<h3>Statements</h3>",
        _statements(rows),
        "<h2>Table II</h2>",
        _table2("On a stand-in", read("azure_standin")),
        _table2("On the public traces of 2023", read("azure_2023")),
        "<h2>Provenance</h2>",
        _provenance({name: read(name) for name in _datasets()}),
    ]
    charts = json.dumps({"config": config, "specs": specs}, separators=(",", ":"), ensure_ascii=False)
    # Neither may end its script element early.
    vega = vl_convert.javascript_bundle(vl_version=VEGA_LITE).replace("</script", "<\\/script")
    return PAGE.substitute(style=STYLE, body="\n".join(body), vega=vega, charts=charts.replace("<", "\\u003c"))


def _counts(rows: Iterable[Mapping[str, Any]]) -> str:
    items = (
        f'<li style="--color: {STATUS_STYLE[status][0]}"><b>{number}</b>{escape(status)}</li>'
        for status, number in claims.counts(list(rows)).items()
    )
    return f'<ul class="counts">{"".join(items)}</ul>'


def _figures() -> str:
    figures = (
        f"<figure>{_picture(name, figure)}"
        f"<figcaption><b>{escape(figure.name)}.</b> {escape(figure.caption)}</figcaption></figure>"
        for name, figure in FIGURES.items()
    )
    return '<div class="figures">\n' + "\n".join(figures) + "\n</div>"


def _picture(name: str, figure: Figure) -> str:
    if figure.interactive:
        return f'<div class="chart" id="chart-{name}"></div>'
    return f'<img src="figures/{name}.svg" alt="{escape(figure.name)}">'


def _numbers(rows: Iterable[Mapping[str, Any]]) -> str:
    cells = [
        [
            _cell(row["id"]),
            _cell(row["text"]),
            _number(claims.number_text(row["paper"]) + (f" {row['unit']}" if row.get("unit") else "")),
            _number(claims.number_text(row["reproduced"])),
            _number(claims.row_interval(row)),
            _number(_signed(row.get("relative_deviation"), 0, 100, " %")),
            _number(_signed(row.get("combined_se_distance"), 1)),
            _status(row),
            _cell(row.get("note") or "", "note"),
        ]
        for row in rows
        if row["kind"] == "number"
    ]
    return _table(("id", "number", "paper", "here", "95 % interval", "deviation", "distance", "status", "note"), cells)


def _statements(rows: Iterable[Mapping[str, Any]]) -> str:
    cells = [
        [
            _cell(row["id"]),
            _cell(row["text"], "text"),
            _status(row),
            _cell(row["reproduced"], "text"),
            _cell(claims.row_interval(row), "text"),
            _cell(row.get("note") or "", "note"),
        ]
        for row in rows
        if row["kind"] != "number"
    ]
    return _table(("id", "statement", "status", "found", "tightest (95 %)", "note"), cells)


def _status(row: Mapping[str, Any]) -> str:
    color, _ = STATUS_STYLE[row["status"]]
    return f'<td><span class="status" style="--color: {color}">{escape(row["status"])}</span></td>'


def _signed(value: float | None, digits: int, factor: float = 1, unit: str = "") -> str:
    """With its sign, unless it is rounded to zero; nothing for None."""
    if value is None:
        return ""
    text = f"{factor * value:+.{digits}f}"
    return (text if float(text) else text[1:]) + unit


def _table2(heading: str, study: xr.Dataset) -> str:
    """The quantities of Table II, a row a policy, and trace and label where the study has them."""
    table = table2_intervals(study)
    parts = [dim for dim in ("trace", "label") if dim in table.dims]
    quantities = ("mean wait (s)", "against FCFS", "S99 (s)", "L99 (s)", "tokens/s", "utilization", "KV overflows")
    stacked = table.stack(row=(*parts, "policy"))
    rows = []
    for i in range(stacked.sizes["row"]):
        one = stacked.isel(row=i)
        rows.append(
            [_cell(str(stacked[part].values[i])) for part in (*parts, "policy")]
            + [_estimate(factor * one[variable].values, form, unit) for variable, form, factor, unit in TABLE2_CELLS]
            + [_number(f"{one.kv_overflows.item():.0f}")]
        )
    traffic = study.attrs.get("traffic", "")
    text = f"{traffic[:1].upper()}{traffic[1:]}. "
    text += f"{study.sizes['window']} windows; the mean wait is pooled, P99s are medians; 95 % intervals over windows."
    return f"<h3>{escape(heading)}</h3><p>{escape(text)}</p>{_table((*parts, 'policy', *quantities), rows)}"


TABLE2_CELLS = (
    ("wait_mean_s", ".3f", 1, ""),
    ("wait_change", "+.1f", 100, " %"),
    ("wait_p99_true_short_s", ".2f", 1, ""),
    ("wait_p99_true_long_s", ".2f", 1, ""),
    ("throughput_tokens_per_s", ",.0f", 1, ""),
    ("batch_utilization", ".3f", 1, ""),
)
"""Variable, format, factor and unit of the estimates in Table II."""


def _estimate(values: Sequence[float], form: str, unit: str) -> str:
    """Value and, unless it has no width, interval."""
    value, low, high = (f"{x:{form}}" for x in values)
    return _number(f"{value}{unit}" + (f" [{low}…{high}]" if low != high else ""))


def _datasets() -> list[str]:
    """Every result file behind the page, each once."""
    shown = [name for figure in FIGURES.values() for name in figure.datasets if name != "scorecard"]
    return list(dict.fromkeys([*shown, *claims.DATASETS]))


def _provenance(datasets: Mapping[str, xr.Dataset]) -> str:
    def attribute(name: str) -> list[str]:
        return [str(dataset.attrs.get(name, "")) for dataset in datasets.values()]

    columns = [[f"{name}.nc" for name in datasets], attribute("qba_parameters"), attribute("qba_sources")]
    rows = [[f"<td><code>{escape(text)}</code></td>" for text in row] for row in zip(*columns)]
    made_with = "".join(
        f"<p>{title}: {' · '.join(f'<code>{escape(text)}</code>' for text in dict.fromkeys(attribute(name)))}</p>"
        for title, name in (("Versions", "qba_versions"), ("SHA-256 of the code behind the numbers", "qba_code"))
    )
    return made_with + _table(("file", "parameters", "input files and their SHA-256"), rows)


def _table(header: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    """header: texts; rows: cells as HTML. A heading stands above its numbers, to the right, where they do."""
    number = [cell.startswith('<td class="number"') for cell in rows[0]] if rows else []
    head = "".join(
        f'<th class="number">{escape(text)}</th>' if right else f"<th>{escape(text)}</th>"
        for text, right in zip_longest(header, number)
    )
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'


def _cell(text: object, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(str(text))}</td>' if kind else f"<td>{escape(str(text))}</td>"


def _number(text: str) -> str:
    return _cell(text.replace("-", "−"), "number")
