"""Commands about requests: one run of each policy, and what a trace of one's own asks for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from qba.cli.options import (
    add_engine, add_errors, add_policies, add_trace, engine_and_policies, predicted, read_requests, say,
)  # fmt: skip
from qba.errors import InputError


def add(commands) -> None:
    """Add the commands to the parser's."""
    simulate = commands.add_parser(
        "simulate", help="summarise one run of each policy, on a trace or the synthetic workload"
    )
    add_trace(simulate, optional=True)
    simulate.add_argument("--seed", type=int, help="replication of the synthetic workload (default: 0)")
    add_policies(simulate)
    add_errors(simulate)
    add_engine(simulate)
    simulate.set_defaults(command=_simulate)

    describe = commands.add_parser("describe", help="what a trace is like, and whether prediction can help it")
    add_trace(describe)
    add_engine(describe)
    describe.set_defaults(command=_describe)

    compare = commands.add_parser("compare", help="replay a trace under every policy")
    add_trace(compare)
    add_policies(compare)
    add_errors(compare)
    add_engine(compare)
    compare.set_defaults(command=_compare)

    tune = commands.add_parser("tune", help="which policy, quota k and aging quantile γ an objective asks for")
    add_trace(tune)
    tune.add_argument(
        "--objective", required=True, metavar="TEXT", help="such as 'min mean s.t. p99_long <= 2.0' (seconds)"
    )
    add_errors(tune)
    add_engine(tune)
    tune.set_defaults(command=_tune)

    capacity = commands.add_parser("capacity", help="the highest rate at which each policy keeps a bound")
    add_trace(capacity)
    capacity.add_argument("--slo", required=True, metavar="TEXT", help="such as 'p99 <= 2.0' (seconds)")
    add_policies(capacity)
    add_errors(capacity)
    add_engine(capacity)
    capacity.set_defaults(command=_capacity)
    for command in (describe, compare, tune, capacity):
        command.add_argument("--out", type=Path, metavar="DIR", help="also write netCDF, CSV and a picture there")


def _simulate(options: argparse.Namespace) -> None:
    from qba import simulate, summarize
    from qba.sweeps import check_policies
    from qba.tables import summaries_text

    if options.trace and options.seed is not None:
        raise InputError("--seed is about the synthetic workload, but a trace is given")
    config, policies = engine_and_policies(options)
    requests = read_requests(options, config) if options.trace else _synthetic(options)
    check_policies(policies)
    summaries = {policy.name: summarize(simulate(requests, policy, config)) for policy in policies}
    print(f"{requests!r}\n{summaries_text(summaries)}")


def _synthetic(options: argparse.Namespace) -> Any:
    from qba import synthetic

    for name in ("columns", "clock", "strict", "label_by", "length_scale", "drop_oversize", "speedup"):
        if getattr(options, name):
            raise InputError(f"--{name.replace('_', '-')} is about a trace, but none is given")
    seed = options.seed or 0
    requests = synthetic(32 if options.rate is None else options.rate, seed)
    return predicted(requests, options, seed)


def _describe(options: argparse.Namespace) -> None:
    from qba.advice import describe
    from qba.advice.description import warnings
    from qba.advice.text import describe_text

    config, _ = engine_and_policies(options)
    requests = read_requests(options, config)
    about = describe(requests, config)
    print(describe_text(about))
    for line in warnings(about, options.label_by or "response"):
        say(line)

    def picture() -> Any:
        from qba.figures import advice

        return advice.trace(about, requests)

    _write(options, "describe", about, picture)


def _compare(options: argparse.Namespace) -> None:
    from qba.advice import compare
    from qba.engine.simulate import check
    from qba.advice.comparison import remarks
    from qba.advice.text import compare_text

    config, policies = engine_and_policies(options)
    requests = read_requests(options, config)
    check(requests, policies[0], config)  # refused before anything is said of it
    _warn(requests, config, policies, options)
    study = compare(requests, policies, config, progress=sys.stderr.isatty())
    print(compare_text(study))
    for line in remarks(study):
        say(line)

    def picture() -> Any:
        from qba.figures import advice

        return advice.comparison(study)

    _write(options, "compare", study, picture)


def _tune(options: argparse.Namespace) -> None:
    from qba.advice import tune
    from qba.advice.measures import objective
    from qba.advice.text import tune_text
    from qba.engine.simulate import check
    from qba.policies import FCFS

    wanted = objective(options.objective)  # a misspelt one is told before the trace is read
    config, _ = engine_and_policies(options)
    requests = read_requests(options, config)
    check(requests, FCFS(), config)
    study = tune(requests, wanted, config, progress=sys.stderr.isatty())
    _warn(requests, config, [], options)
    print(tune_text(study))

    def picture() -> Any:
        from qba.figures import advice

        return advice.frontier(study)

    _write(options, "tune", study, picture)


def _capacity(options: argparse.Namespace) -> None:
    from qba.advice import capacity
    from qba.advice.measures import bound
    from qba.advice.text import capacity_text
    from qba.engine.simulate import check

    limit = bound(options.slo)
    for name in ("rate", "speedup"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} changes the rate, which capacity finds by itself")
    config, policies = engine_and_policies(options)
    requests = read_requests(options, config)
    check(requests, policies[0], config)
    _warn(requests, config, policies, options, load=False)
    study = capacity(requests, limit, policies, config, progress=sys.stderr.isatty())
    print(capacity_text(study))
    if study.sustained_rate.sel(estimate="low").isnull().any():
        say(f"too few requests ({len(requests):,}) for intervals, or to trust the rates")

    def picture() -> Any:
        from qba.figures import advice

        return advice.capacities(study)

    _write(options, "capacity", study, picture)


def _warn(requests: Any, config: Any, policies: list, options: argparse.Namespace, load: bool = True) -> None:
    """Say what one should know of the trace and the policies; ``load``: also whether the rate suits the engine."""
    from qba.advice import describe
    from qba.advice.description import warnings

    if requests.arrival_s[0] < requests.arrival_s[-1]:
        for line in warnings(describe(requests, config), options.label_by or "response", load):
            say(line)
    of_clients = [policy.name for policy in policies if "client" in getattr(policy, "knows", ())]
    if of_clients and not requests.client.any():
        say(f"{', '.join(of_clients)}: a trace file does not say whose the requests are, so all are of one client")


def _write(options: argparse.Namespace, name: str, study: Any, picture: Any) -> None:
    """The dataset as netCDF and CSV and its picture as SVG and PNG, in the folder of --out if there is one."""
    if options.out is None:
        return
    from qba.advice.files import write_study

    for path in write_study(options.out, name, study, picture(), options.trace):
        print(path)
