"""The command line. A mistake of the user's ends in one line on standard error and exit status 2."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from qba.errors import InputError

# Imports of the package's heavy parts stand in the commands, so that --help and mistakes answer at once.


class Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, as the commands report wrong input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 the user's mistake, 130 interrupted."""
    warnings.showwarning = _show_warning
    try:
        options = _parser().parse_args(arguments)
        options.command(options)
    except InputError as error:
        _stop(2, str(error))
    except KeyboardInterrupt:
        _stop(130, "interrupted; files written so far are whole")
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _stop(1, str(error))
    except RuntimeError as error:
        from qba.notebooks import NotebookError

        if not isinstance(error, NotebookError):
            raise
        _stop(1, str(error))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"qba: {message}", file=sys.stderr)


def _stop(status: int, message: str) -> NoReturn:
    print(f"qba: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _parser() -> Parser:
    parser = Parser(
        prog="qba", description="Scheduling in LLM serving: simulate policies, reproduce the paper's study."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

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

    simulate = commands.add_parser(
        "simulate", help="summarise one run of each policy, on a trace or the synthetic workload"
    )
    simulate.add_argument("trace", nargs="?", type=Path, help="a trace file (default: the synthetic workload)")
    simulate.add_argument("--columns", help="arrival=NAME,prompt=NAME,response=NAME for a trace of another format")
    simulate.add_argument(
        "--rate", type=float, help="requests/s; a trace is rescaled to it (default: 32, or the trace's own)"
    )
    simulate.add_argument(
        "--length-scale", type=float, help="factor on a trace's prompt and response lengths (default: 1)"
    )
    simulate.add_argument(
        "--drop-oversize", action="store_true", help="leave out prompts that the engine can never admit"
    )
    simulate.add_argument("--seed", type=int, help="replication of the synthetic workload (default: 0)")
    simulate.add_argument("--policies", default="FCFS,PSF,AA,QBA", help="comma-separated (default: all four)")
    simulate.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="a parameter of the policies or of the engine, such as quota=3 or kv_capacity=16384",
    )  # fmt: skip
    simulate.set_defaults(command=_simulate)

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
    return parser


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

    parameters = {name: _literal(value) for name, value in options.parameters}
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


def _simulate(options: argparse.Namespace) -> None:
    from qba import EngineConfig, simulate, summarize
    from qba.policies import BUILT_IN, policy_by_name
    from qba.tables import summaries_text

    own = {cls.__name__: {f.name for f in fields(cls)} for cls in BUILT_IN}
    engine = {f.name for f in fields(EngineConfig)}
    names = [name.strip() for name in options.policies.split(",")]
    for name in names:
        policy_by_name(name)  # a misspelt policy is told before its parameters
    settings = dict(_setting(text) for text in options.settings)
    known = engine.union(*(own.get(name, ()) for name in names))
    for name in settings:
        if name not in known:
            raise InputError(
                f"--set {name}: no such parameter of {', '.join(names)} or the engine: {', '.join(sorted(known))}"
            )
    config = EngineConfig(**{name: value for name, value in settings.items() if name in engine})
    policies = [policy_by_name(name, **{k: v for k, v in settings.items() if k in own.get(name, ())}) for name in names]
    requests = _requests(options, config)
    summaries = {policy.name: summarize(simulate(requests, policy, config)) for policy in policies}
    print(f"{requests!r}\n{summaries_text(summaries)}")


def _requests(options: argparse.Namespace, config):
    from qba import read_trace, synthetic
    from qba.traces import drop_oversize, rescale, scale_lengths

    if options.trace is None:
        for name in ("columns", "length_scale", "drop_oversize"):
            if getattr(options, name):
                raise InputError(f"--{name.replace('_', '-')} is about a trace, but none is given")
        return synthetic(32 if options.rate is None else options.rate, options.seed or 0)
    if options.seed is not None:
        raise InputError("--seed is about the synthetic workload, but a trace is given")
    columns = dict(_setting(text, literal=False) for text in options.columns.split(",")) if options.columns else None
    requests = read_trace(options.trace, columns=columns)
    if options.length_scale is not None:
        requests = scale_lengths(requests, options.length_scale)
    if options.drop_oversize:
        requests, dropped = drop_oversize(requests, config)
        print(f"qba: {dropped:,} of the requests dropped: prompt beyond the KV-safe limit", file=sys.stderr)
    return requests if options.rate is None else rescale(requests, options.rate)


def _setting(text: str, literal: bool = True) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InputError(f"{text!r} must have the form NAME=VALUE")
    return name.strip(), _literal(value.strip()) if literal else value.strip()


def _literal(text: str) -> object:
    """A number, list or the like where the text is one; else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
