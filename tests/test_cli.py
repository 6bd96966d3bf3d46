"""The command line: what it prints, and one line and exit status 2 for every mistake of the user's."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import qba
from qba import paths, results
from qba.cli import main

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "".join(
    f"2023-11-16 18:17:{i // 10:02}.{i % 10}000000,{50 + 7 * i % 400},{10 + 13 * i % 90}\r\n" for i in range(100)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a good trace, a few bad ones and no results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QBA_RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("QBA_DATA_DIR", str(tmp_path / "none"))
    (tmp_path / "good.csv").write_text(TRACE, newline="")
    (tmp_path / "renamed.csv").write_text(TRACE.replace("ContextTokens", "Prompt"), newline="")
    (tmp_path / "negative.csv").write_text(TRACE.replace(",50,", ",-50,"), newline="")
    (tmp_path / "huge.csv").write_text(TRACE.replace(",50,", ",9999,"), newline="")
    (tmp_path / "header.csv").write_text(TRACE.split("\r\n")[0], newline="")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "results").mkdir()
    return tmp_path


def run(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    try:
        main(arguments)
        status = 0
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["tidy"], "invalid choice: 'tidy'"),
        (
            ["simulate", "--policies", "FCFS,SJF", "--set", "quota=3"],
            "unknown policy 'SJF' (did you mean SSJF?): there are FCFS, PSF, AA, QBA",
        ),
        (["simulate", "--set", "speed=3"], "--set speed: no such parameter"),
        (["simulate", "--set", "quota=3", "--policies", "FCFS,AA"], "--set quota: no such parameter of FCFS, AA"),
        (["simulate", "--set", "quota=99999999999999999999999"], "at most 2147483647"),
        (["simulate", "--rate", "1e9"], "100,000,000,000 requests"),
        (["simulate", "--columns", "arrival=A"], "--columns is about a trace"),
        (["simulate", "good.csv", "--seed", "1"], "--seed is about the synthetic workload"),
        (["simulate", "--set", "quota"], "'quota' must have the form NAME=VALUE"),
        (["simulate", "--set", "quota=0"], "quota = 0"),
        (["simulate", "--set", "aging_quantile=1.5"], "aging_quantile = 1.5"),
        (["simulate", "--set", "kv_safety=0"], "kv_safety = 0"),
        (["simulate", "--set", "kv_capacity=50"], "could never run"),
        (["simulate", "--rate", "-3"], "rate = -3"),
        (["simulate", "--rate", "fast"], "invalid float value: 'fast'"),
        (["simulate", "missing.csv"], "missing.csv"),
        (["simulate", "results"], "directory"),
        (["simulate", "empty.csv"], "empty.csv"),
        (["simulate", "header.csv"], "header.csv"),
        (["simulate", "renamed.csv"], "Prompt"),
        (["simulate", "negative.csv"], "line 2"),
        (["simulate", "huge.csv"], "9999"),
        (["simulate", "good.csv", "--columns", "arrival=TIME,prompt=ContextTokens,response=GeneratedTokens"], "TIME"),
        (["simulate", "good.csv", "--columns", "arrival"], "NAME=VALUE"),
        (["notebook", "7_nothing", "out.ipynb"], "00_setup"),
        (["notebook", "01_load_sweep", "out.ipynb", "-p", "seedz", "3"], "did you mean 'seeds'"),
        (["notebook", "01_load_sweep", "out.ipynb", "-p", "seeds", "three"], "int is needed"),
        (["reproduce", "--seeds", "0"], "seeds = 0"),
        (["notebook", "01_load_sweep", "results"], "results: is a directory"),
        (["notebook", "01_load_sweep", "out.ipynb", "-p", "seeds", "0"], "seeds = 0"),
        (["reproduce", "--seeds", "3", "--results", "file"], "cannot be written"),
        (["reproduce", "--seeds", "3", "--results", "/proc/none"], "cannot be written"),
        (["scorecard"], "scorecard.json"),
        (["draw"], "load_sweep.nc"),
        (["fetch", "azure-1999"], "azure-1999"),
        (["describe"], "required: trace"),
        (["describe", "good.csv", "--label-by", "wait"], "label_by = 'wait'"),
        (["describe", "good.csv", "--clock", "years"], "years"),
        (["describe", "good.csv", "--speedup", "0"], "--speedup 0"),
        (["describe", "good.csv", "--rate", "3", "--speedup", "2"], "not allowed with argument"),
        (["compare", "good.csv", "--profile", "a100"], "did you mean 'a100-llama-2-7b'"),
        (["compare", "good.csv", "--budget", "0"], "token_budget = 0"),
        (["compare", "good.csv", "--kv", "9999", "--set", "kv_capacity=3"], "is given twice"),
        (["compare", "good.csv", "--policies", "FCFS,Best"], "unknown policy 'Best'"),
        (["compare", "good.csv", "--short-to-long", "2"], "short_to_long = 2"),
        (["compare", "huge.csv"], "could never run"),
        (["compare", "good.csv", "--out", "file"], "cannot be written"),
        (["tune", "good.csv"], "--objective"),
        (["tune", "missing.csv", "--objective", "max mean"], "objective 'max mean'"),
        (["tune", "missing.csv", "--objective", "min mean s.t. p99_lnog <= 2"], "no measure 'p99_lnog'"),
        (["tune", "good.csv", "--objective", "min mean"], "100 requests are too few"),
        (["capacity", "missing.csv", "--slo", "p99"], "bound 'p99'"),
        (["capacity", "good.csv", "--slo", "p99 <= 1", "--rate", "3"], "capacity finds by itself"),
        (["compare", "renamed.csv"], "--columns arrival=NAME"),
        (["compare", "good.csv", "--policies", "fcfs"], "did you mean FCFS?"),
    ],
)
def test_a_mistake_ends_in_one_line_and_status_2(folder, capsys, arguments, message):
    before = sorted(folder.rglob("*"))
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert err.startswith("qba: ") and err.count("\n") == 1 and message in err
    assert "Traceback" not in err + out
    assert sorted(folder.rglob("*")) == before, "nothing may be written"


def test_simulate_summarises_each_policy(folder, capsys):
    status, out, _ = run(capsys, "simulate", "--policies", "PSF,QBA", "--set", "quota=2", "--rate", "30", "--seed", "4")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("<Requests: 3,000 over")
    assert [line.split()[0] for line in lines[2:]] == ["PSF", "QBA"]


def test_rivals_are_named_and_set_like_the_papers_policies(folder, capsys):
    arguments = (
        "--policies",
        "WRR,SSJF,PSF",
        "--set",
        "k=3",
        "--rate",
        "30",
        "--length-error",
        "0.5",
        "--rank-noise",
        "0.1",
    )
    status, out, err = run(capsys, "simulate", *arguments)
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["WRR", "SSJF", "PSF"]
    assert out != run(capsys, "simulate", *arguments[:-4])[1]
    status, _, err = run(capsys, "simulate", "--policies", "SSJF", "--set", "k=3")
    assert status == 2 and err.startswith("qba: --set k: no such parameter of SSJF")


def test_simulate_reads_and_rescales_a_trace(folder, capsys):
    status, out, _ = run(capsys, "simulate", "good.csv", "--rate", "99")
    assert status == 0 and "<Requests: 100 over 1.0 s" in out
    status, out, err = run(capsys, "simulate", "huge.csv", "--drop-oversize")
    assert (
        status == 0
        and "<Requests: 99 over" in out
        and err == "qba: 1 of the requests dropped: prompt beyond the KV-safe limit\n"
    )
    status, out, _ = run(capsys, "simulate", "good.csv", "--length-scale", "2")
    doubled = sum(2 * (50 + 7 * i % 400) for i in range(100)) / 100
    assert status == 0 and f"{doubled:,.0f} prompt" in out
    columns = "arrival=TIMESTAMP,prompt=Prompt,response=GeneratedTokens"
    status, out, _ = run(capsys, "simulate", "renamed.csv", "--columns", columns)
    assert status == 0 and "<Requests: 100 over 9.9 s" in out


def test_a_notebook_runs_with_its_parameters(folder, capsys):
    status, out, err = run(capsys, "notebook", "0", "out.ipynb", "-p", "end_s", "21")
    assert status == 0, err
    assert "end_s = 21.0" in (folder / "out.ipynb").read_text()


def test_scorecard_prints_the_published_rows(folder, capsys):
    status, out, _ = run(capsys, "scorecard", "--results", str(paths.repository() / "results"))
    assert status == 0 and out.count("\n") == 50 and "N26" in out


@pytest.fixture
def busy(folder: Path) -> Path:
    """A trace of enough requests to tune by."""
    qba.traces.write_trace(qba.synthetic(31, requests=1200), folder / "busy.csv")
    return folder / "busy.csv"


def test_describe_tells_rate_and_lengths(busy, capsys):
    status, out, err = run(capsys, "describe", "busy.csv", "--out", "made")
    assert status == 0 and out.startswith("1,200 requests in") and "prompt" in out
    assert [line for line in out.splitlines() if line.startswith("made/")] == [
        f"made/describe.{ending}" for ending in ("nc", "csv", "svg", "png")
    ]
    assert run(capsys, "describe", "busy.csv", "--speedup", "0.1")[2].startswith("qba: at 3.")


def test_compare_replays_under_every_policy_and_writes_files(busy, capsys):
    arguments = ("busy.csv", "--policies", "FCFS,QBA,SSJF", "--set", "quota=2", "--rate", "28", "--length-error", "0.5")
    status, out, _ = run(capsys, "compare", *arguments, "--out", "made")
    assert status == 0 and [line.split()[0] for line in out.splitlines()[2:8:2]] == ["FCFS", "QBA", "SSJF"]
    table = pd.read_csv("made/compare.csv")
    assert table.policy.tolist() == ["FCFS", "QBA", "SSJF"] and (table.wait_mean_s > 0).all()
    assert "quota=2" in results.load("made/compare.nc").attrs["policies"]


def test_tune_and_capacity_answer(busy, capsys):
    status, out, _ = run(capsys, "tune", "busy.csv", "--objective", "min mean s.t. p99_long <= 60")
    assert status == 0 and out.splitlines()[1].startswith("use ")
    status, out, _ = run(capsys, "tune", "busy.csv", "--objective", "min mean s.t. p99_long <= 0.0001")
    assert status == 0 and "no setting surely meets the bounds" in out
    status, out, _ = run(
        capsys, "capacity", "busy.csv", "--slo", "p99 <= 1", "--policies", "FCFS,PSF", "--profile", "paper"
    )
    assert status == 0 and [line.split()[0] for line in out.splitlines()[2:]] == ["FCFS", "PSF"]


MINE = """import qba

@qba.policy
class ShortPrompts:
    def key(self, request):
        return request.prompt_tokens
"""


def test_policies_of_ones_own_are_loaded_from_a_file(folder, capsys):
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text(MINE + "\nShortPrompts(weight=1)\n")
    (folder / "wrong.py").write_text("def\n")
    status, out, err = run(capsys, "simulate", "--load", "mine.py", "--policies", "FCFS,ShortPrompts", "--rate", "31")
    assert status == 0, err
    fcfs, mine = (line.split() for line in out.splitlines()[2:])
    assert (fcfs[0], mine[0]) == ("FCFS", "ShortPrompts") and float(mine[1]) < float(fcfs[1])
    for file, message in (
        ("broken.py", "no parameter 'weight'"),
        ("wrong.py", "wrong.py, line 1: SyntaxError"),
        ("none.py", "no such file"),
        ("good.csv", "must end in .py"),
    ):
        status, _, err = run(capsys, "simulate", "--load", file)
        assert status == 2 and err.count("\n") == 1 and message in err


def test_help_is_quick_and_python_m_works():
    done = subprocess.run([sys.executable, "-m", "qba", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "reproduce" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "qba", "simulate", "no.csv"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_the_readmes_shell_command_runs(folder, capsys, monkeypatch):
    readme = (paths.repository() / "README.md").read_text(encoding="utf-8")
    [command] = [line for line in readme.splitlines() if line.startswith(".venv/bin/qba simulate")]
    monkeypatch.chdir(paths.repository())
    status, out, err = run(capsys, *shlex.split(command)[1:])
    assert (status, err) == (0, "") and [line.split()[0] for line in out.splitlines()[2:]] == ["FCFS", "PSF", "QBA"]


def test_the_readmes_ten_lines_run(folder, capsys):
    readme = (paths.repository() / "README.md").read_text(encoding="utf-8")
    lines = readme.partition("## In ten lines\n\n```python\n")[2].partition("```")[0]
    exec(compile(lines.replace("seeds=100", "seeds=2"), "README.md", "exec"), {})
    assert "quota" in capsys.readouterr().out
