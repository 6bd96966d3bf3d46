"""The compiled loop is kept on disk: found again by a new process, never mixed up after a change or between processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qba

PROBE = """
import sys, qba
from qba.engine import loop
requests = qba.Requests(arrival_s=[0, 0, 0], prompt_tokens=[200, 9, 9], response_tokens=[9, 1, 1], predicted_long=[1, 0, 0])
waits = {name: qba.simulate(requests, getattr(qba, name)()).wait_s.values.tolist() for name in sys.argv[1:]}
print(sorted(waits.items()))
print(sum(loop.run.stats.cache_hits.values()), sum(loop.run.stats.cache_misses.values()))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package without compiled files."""
    source = Path(qba.__file__).parent
    shutil.copytree(source, tmp_path / "qba", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def start(folder: Path, *policies: str, probe: str = PROBE) -> subprocess.Popen:
    command = [sys.executable, "-c", probe, *policies]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    waits, counts = out.strip().splitlines()
    return waits, counts


def test_processes_that_compile_at_once_agree_and_later_ones_do_not_compile(copy):
    together = [start(copy, "PSF", "QBA"), start(copy, "QBA", "PSF")]
    first = [answer(process) for process in together]
    later = answer(start(copy, "PSF", "QBA"))
    assert {waits for waits, _ in first} == {later[0]}
    assert later[1] == "2 0"


def test_rivals_are_kept_too_and_looked_for_only_when_named(copy):
    by_name = PROBE.replace("getattr(qba, name)()", "qba.policies.policy_by_name(name)")
    lazy = by_name.replace("requests =", "assert 'qba.rivals' not in sys.modules\nrequests =", 1)
    first = answer(start(copy, "SSJF", probe=lazy))
    assert first[1] == "0 1"
    assert answer(start(copy, "SSJF", probe=by_name)) == (first[0], "1 0")
    # A process that never names a rival reads the index that names its class.
    assert answer(start(copy, "PSF"))[1] == "0 1"
    assert answer(start(copy, "PSF", "SSJF", probe=by_name))[1] == "2 0"


def test_a_rule_from_elsewhere_is_left_out_of_the_cache(copy):
    own = copy / "mine.py"
    own.write_text(
        "import dataclasses, qba.policies as p\nclass Rule(p.PSFRule):\n    pass\n"
        "@dataclasses.dataclass(frozen=True)\nclass Mine(p.Policy):\n    rule_class = Rule\n"
    )
    probe = PROBE.replace("waits = {name", "import mine; qba.Mine = mine.Mine\nwaits = {name")
    for _ in range(2):
        assert answer(start(copy, "Mine", probe=probe))[1] == "0 1"
    own.unlink()  # a process that does not know the class can still read the cache
    assert answer(start(copy, "PSF"))[1] == "0 1"
    assert answer(start(copy, "PSF"))[1] == "1 0"


def test_a_changed_rule_is_not_served_from_the_old_code(copy):
    before = answer(start(copy, "PSF"))
    policies = copy / "qba" / "policies.py"
    source = policies.read_text()
    assert source.count("return SHORT if short >= 0 else LONG") == 3
    policies.write_text(source.replace("return SHORT if short >= 0 else LONG", "return LONG if long >= 0 else SHORT"))
    after = answer(start(copy, "PSF"))
    assert after[1] == "0 1"
    assert after[0] != before[0]
    policies.write_text(source)
    assert answer(start(copy, "PSF")) == (before[0], "1 0")
