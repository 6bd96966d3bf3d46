"""The command line. A mistake of the user's ends in one line on standard error and exit status 2.

A command is an entry in `study` (the paper's study) or `traces` (one's own trace): a parser's options and a function.
Imports of the package's heavy parts stand in the commands, so that --help and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from qba.cli import study, traces
from qba.errors import InputError


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
        prog="qba",
        description="Scheduling in LLM serving: simulate policies, replay a trace, reproduce the paper's study.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    study.add(commands)
    traces.add(commands)
    return parser
