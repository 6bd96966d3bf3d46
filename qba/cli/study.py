"""Commands about the paper's study: running it, its notebooks and figures, its scorecard."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from qba.cli.options import literal
from qba.errors import InputError


def add(commands) -> None:
    """Add the commands to the parser's."""
    reproduce = commands.add_parser("reproduce", help="run the whole study into the results folder")
    reproduce.add_argument("--seeds", type=int, default=100, help="replications of each synthetic point (default: 100)")
    reproduce.add_argument("--results", type=Path, help="another results folder (default: results/)")
    reproduce.add_argument(
        "--beyond", action="store_true",
        help="instead, the studies beyond the paper (calibration, robustness), some thirty minutes",
    )  # fmt: skip
    reproduce.set_defaults(command=_reproduce)

    notebook = commands.add_parser("notebook", help="run one notebook with parameters, checked")
    notebook.add_argument("name", help="its name, number or path, such as 01_load_sweep or 1")
    notebook.add_argument("output", type=Path, help="where the executed notebook goes")
    notebook.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    notebook.set_defaults(command=_notebook)

    fetch = commands.add_parser("fetch", help="download public traces into data/")
    fetch.add_argument("name", choices=["azure-2023"], help="which traces")
    fetch.add_argument("--timeout", type=float, default=30, help="seconds to wait for the network (default: 30)")
    fetch.set_defaults(command=_fetch)

    draw = commands.add_parser(
        "draw", help="redraw figures, scorecard and report from the datasets, without simulating"
    )
    draw.add_argument("--results", type=Path, help="another results folder (default: results/)")
    draw.set_defaults(command=_draw)

    scorecard = commands.add_parser("scorecard", help="print the scorecard of the results folder")
    scorecard.add_argument("--results", type=Path, help="another results folder (default: results/)")
    scorecard.set_defaults(command=_scorecard)


def _use_results(folder: Path | None) -> Path:
    """Make a folder the results folder of this process and of the kernels it starts."""
    from qba.paths import results_dir

    if folder is not None:
        os.environ["QBA_RESULTS_DIR"] = str(folder.absolute())
    return results_dir()


def _reproduce(options: argparse.Namespace) -> None:
    from qba.paths import repository
    from qba.reproduce import FULL_SEEDS, beyond_the_paper, reproduce
    from qba.validate import whole_number

    whole_number("reproduce", "seeds", options.seeds, at_least=2)
    folder = _use_results(options.results)
    if options.seeds != FULL_SEEDS and folder == repository() / "results":
        raise InputError(
            f"--seeds {options.seeds} would overwrite the published results; name another folder: --results DIR"
        )

    def say(line: str) -> None:
        print(line, flush=True)

    if options.beyond:
        beyond_the_paper(say)
    else:
        reproduce(options.seeds, say)


def _notebook(options: argparse.Namespace) -> None:
    from qba.notebooks import run_notebook

    parameters = {name: literal(value) for name, value in options.parameters}
    print(run_notebook(options.name, options.output, parameters, progress=sys.stderr.isatty()))


def _fetch(options: argparse.Namespace) -> None:
    from qba.traces import fetch_azure_2023

    for path in fetch_azure_2023(timeout=options.timeout):
        print(path)


def _draw(options: argparse.Namespace) -> None:
    from qba import figures, report
    from qba.reproduce import write_accounts

    folder = _use_results(options.results)
    write_accounts(folder)
    for path in figures.draw_all(folder):
        print(path)
    print(report.write_report(folder))


def _scorecard(options: argparse.Namespace) -> None:
    from qba import claims

    rows = claims.read_scorecard(_use_results(options.results))
    print("\n".join(claims.line(row) for row in rows))
    print(", ".join(f"{count} {status}" for status, count in claims.counts(rows).items()))
