"""Options that commands share, and what becomes of them: requests, an engine, policies."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from qba.errors import InputError


PAPER_NAMES = ["FCFS", "PSF", "AA", "QBA"]


def literal(text: str) -> Any:
    """A number, list or the like where the text is one; else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def setting(text: str) -> tuple[str, str]:
    """NAME=VALUE as a pair. Raises InputError for another text."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise InputError(f"{text!r} must have the form NAME=VALUE")
    return name.strip(), value.strip()


def add_trace(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """The trace file, how to read it and what to make of it."""
    nargs = {"nargs": "?"} if optional else {}
    parser.add_argument("trace", type=Path, help="a trace file: CSV, JSONL, Parquet or JSON, also gzipped", **nargs)
    reading = parser.add_argument_group("reading the trace")
    reading.add_argument("--columns", help="arrival=NAME,prompt=NAME,response=NAME for a file of no known format")
    reading.add_argument(
        "--clock", help="unit of its arrivals: seconds, milliseconds, microseconds, nanoseconds or stamps"
    )
    reading.add_argument("--strict", action="store_true", help="refuse rows that would be dropped or repaired")
    reading.add_argument("--label-by", help="what makes a request long: response (default), total or prompt tokens")
    reading.add_argument("--length-scale", type=float, help="factor on prompt and response lengths (default: 1)")
    reading.add_argument(
        "--drop-oversize", action="store_true", help="leave out prompts that the engine can never admit"
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=float, help="requests/s, mean: the whole trace is sped up or slowed down to it")
    pace.add_argument("--speedup", type=float, help="factor on the trace's own rate")


def add_errors(parser: argparse.ArgumentParser) -> None:
    """How often the predictor errs."""
    group = parser.add_argument_group("the predictor")
    group.add_argument("--short-to-long", type=float, default=0.0, metavar="P", help="share of shorts predicted long")
    group.add_argument("--long-to-short", type=float, default=0.0, metavar="P", help="share of longs predicted short")
    group.add_argument(
        "--length-error", type=float, default=0.0, metavar="SD", help="of the logarithm of a predicted response length"
    )
    group.add_argument(
        "--rank-noise", type=float, default=0.0, metavar="SD", help="of a predicted rank, as a share of the requests"
    )


def predicted(requests: Any, options: argparse.Namespace, seed: int = 0) -> Any:
    """The requests with the errors that the options of `add_errors` ask for; as they are where a command has none."""
    from qba.predictor import predict

    names = ("short_to_long", "long_to_short", "length_error", "rank_noise")
    errors = {name: getattr(options, name, 0.0) for name in names}
    return predict(requests, seed, **errors) if any(errors.values()) else requests


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The engine."""
    group = parser.add_argument_group("the engine")
    group.add_argument(
        "--profile", help="batch times of a known engine, such as a100-llama-2-7b (default: the paper's)"
    )
    group.add_argument("--budget", type=int, metavar="TOKENS", help="tokens in a batch (default: 128)")
    group.add_argument("--kv", type=int, metavar="TOKENS", help="tokens that the KV cache holds (default: 8192)")
    group.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="any other parameter of the engine, or of the policies, such as quota=3",
    )  # fmt: skip


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Which policies."""
    parser.add_argument(
        "--policies",
        help="comma-separated: FCFS, PSF, AA, QBA (the default), those of --load, or of qba.rivals such as SSJF",
    )
    parser.add_argument(
        "--load", type=Path, action="append", default=[], metavar="FILE.py",
        help="a file with policies of your own (see qba.policy)",
    )  # fmt: skip


def engine_and_policies(options: argparse.Namespace) -> tuple[Any, list]:
    """The engine that the options describe, and the policies with the parameters given by --set."""
    from qba.config import EngineConfig
    from qba.policies import policy_by_name, policy_class

    loaded = [name for file in getattr(options, "load", ()) for name in _load(file)]
    engine = {f.name for f in fields(EngineConfig)}
    given = getattr(options, "policies", None)
    names = (
        [name.strip() for name in given.split(",")] if given else PAPER_NAMES + loaded if "policies" in options else []
    )
    if set(loaded) & set(names):
        say("policies of your own are compiled: some seconds for each")
    # A misspelt policy is told before its parameters.
    own = {name: {f.name for f in fields(policy_class(name))} for name in names}
    settings = {name: literal(value) for name, value in map(setting, options.settings)}
    known = engine.union(*own.values())
    for name in settings:
        if name not in known:
            raise InputError(
                f"--set {name}: no such parameter of {' or '.join([', '.join(names), 'the engine'] if names else ['the engine'])}: "
                f"{', '.join(sorted(known))}"
            )
    policies = [policy_by_name(name, **{k: v for k, v in settings.items() if k in own[name]}) for name in names]
    return _engine(options, {name: value for name, value in settings.items() if name in engine}), policies


def _load(file: Path) -> list[str]:
    """Run a file of the user's, whose policies register themselves; returns their names."""
    import importlib.util

    from qba.policies import OWN

    if not file.is_file():
        raise InputError(f"--load {file}: no such file")
    name = f"loaded_{len(sys.modules)}_{file.stem}"  # like no other module's
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise InputError(f"--load {file}: is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = dict(OWN)
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        line = next((f.tb_lineno for f in reversed(_frames(error)) if f.tb_frame.f_code.co_filename == str(file)), None)
        where = getattr(error, "lineno", None) or line
        raise InputError(
            f"--load {file}{f', line {where}' if where else ''}: {type(error).__name__}: {error}"
        ) from error
    found = [name for name, made in OWN.items() if before.get(name) is not made]
    if not found:
        raise InputError(f"--load {file}: defines no policy; qba.policy makes a class one")
    return found


def _frames(error: Exception) -> list[TracebackType]:
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    return frames


def _engine(options: argparse.Namespace, settings: Mapping[str, Any]) -> Any:
    from qba.config import EngineConfig

    given = {
        name: value
        for name, value in (("token_budget", options.budget), ("kv_capacity", options.kv))
        if value is not None
    }
    twice = sorted(set(given) & set(settings))
    if twice:
        raise InputError(f"--set {twice[0]}: is given twice, once by its own option")
    base = EngineConfig() if options.profile is None else EngineConfig.from_profile(options.profile)
    return replace(base, **given, **settings)


def read_requests(options: argparse.Namespace, config: Any) -> Any:
    """The requests of the trace file that the options name, as they ask for; what was dropped is told on standard error."""
    from qba.traces import drop_oversize, read_trace, relabel, rescale, scale_lengths

    if getattr(options, "out", None):
        _try_out(options.out)
    columns = dict(map(setting, options.columns.split(","))) if options.columns else None
    try:
        requests = read_trace(options.trace, columns=columns, strict=options.strict, clock=options.clock)
    except InputError as error:
        raise InputError(_as_options(str(error))) from error
    if options.length_scale is not None:
        requests = scale_lengths(requests, options.length_scale)
    if options.drop_oversize:
        requests, dropped = drop_oversize(requests, config)
        if dropped:
            say(f"{dropped:,} of the requests dropped: prompt beyond the KV-safe limit")
    label_by = options.label_by or "response"
    rate = options.rate
    if options.speedup is not None:
        span = requests.arrival_s[-1] - requests.arrival_s[0]
        if not (options.speedup > 0 and span > 0):
            raise InputError(
                f"--speedup {options.speedup:g}, but it must be above 0, and the trace must span some time"
            )
        rate = options.speedup * (len(requests) - 1) / span
    requests = relabel(requests, label_by) if rate is None else rescale(requests, rate, label_by=label_by)
    return predicted(requests, options)


def _as_options(message: str) -> str:
    """What a message of `qba.read_trace` advises, in the words of the command line."""
    for ours, theirs in (
        ('give columns={"arrival": ..., "prompt": ..., "response": ...}', "give --columns arrival=NAME,prompt=NAME,response=NAME"),
        ('columns must be {"arrival": ..., "prompt": ..., "response": ...}', "--columns must be arrival=NAME,prompt=NAME,response=NAME"),
        ("give clock=, such as clock='milliseconds'", "give --clock, such as --clock milliseconds"),
        ("give clock=", "give --clock"), ("read_trace: clock", "--clock"), ("read_trace: ", ""),
    ):  # fmt: skip
        message = message.replace(ours, theirs)
    return message


def _try_out(folder: Path) -> None:
    """Refuse a folder that cannot be written before any work rather than after it."""
    from qba.results import atomic_write

    there = folder.exists()
    atomic_write(folder / ".writable", "").unlink()
    if not there:
        folder.rmdir()  # until there is something to put into it


def say(line: str) -> None:
    """A remark beside the output, on standard error."""
    print(f"qba: {line}", file=sys.stderr)
