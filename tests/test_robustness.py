"""Claims under other readings: the default one is the published study, and each other one does what it says."""

from __future__ import annotations

import numpy as np
import pytest

import qba
from qba import claims, robustness
from qba.claims.evidence import GRADES
from qba.errors import InputError
from qba.paths import repository
from qba.results import load
from qba.robustness import READINGS, UNJUDGED, Reading, paper_study, robustness_study

PUBLISHED = repository() / "results"


def test_each_option_stands_alone_in_some_reading():
    """So that the effect of each choice of ours can be told apart."""
    alone = [r for r in READINGS if len({**r.engine, **r.aging, **r.quota}) == 1]
    tried = {(name, value) for r in alone for part in (r.engine, r.aging, r.quota) for name, value in part.items()}
    assert {("kv_projection", v) for v in ("chunk", "prompt", "reserve-all")} <= tried
    assert {("on_blocked", "skip"), ("on_overflow", "preempt"), ("decode_partial", False)} <= tried
    assert {("aging_sample", "queue"), ("aging_classes", "predicted-long"), ("promotion_clears", "start")} <= tried
    assert any(name == "aging_window" for name, _ in tried)
    assert {"label_by", "label_threshold"} <= {name for r in READINGS for name in r.labels}
    assert any(r.parallelism == "matched" for r in READINGS)
    assert len({r.name for r in READINGS}) == len(READINGS)


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
def test_every_reading_can_be_judged(reading: Reading):
    study = paper_study(Reading(**{**vars(reading), "workload": {**reading.workload, "horizon_s": 8.0}}), 2, 2)
    rows = claims.scorecard(study)
    assert len(rows) == len(claims.CLAIMS)
    assert all(np.isfinite(study["load_sweep"].wait_mean_s).all() for _ in rows[:1])


def test_the_default_reading_is_the_published_study():
    few = paper_study(READINGS[0], range(3), 2)
    for name in ("load_sweep", "sensitivity", "prediction_errors"):
        published = load(PUBLISHED / f"{name}.nc").sel(seed=range(3))
        for variable in ("wait_mean_s", "wait_p99_s"):
            mine = few[name][variable].broadcast_like(published[variable]).transpose(*published[variable].dims)
            there = mine.notnull()  # of the plane of quota and quantile only the two lines
            assert there.sum() > 0.1 * there.size
            np.testing.assert_array_equal(mine.values[there], published[variable].values[there])


def test_a_fit_under_a_reading_moves_the_mean_lengths_alone():
    reading = Reading("x", engine={"kv_projection": "chunk"})
    found = robustness.refit(reading, 4)
    assert found.engine == reading.engine and set(found.workload) == {"prompt", "response"}
    assert found.workload["response"].cv == qba.workload.RESPONSE.cv
    assert found.workload["response"].mean != qba.workload.RESPONSE.mean


def test_an_unknown_reading_is_refused():
    with pytest.raises(InputError, match="no reading 'nonsense'; there are default, KV: chunk"):
        robustness_study(["nonsense"])


def test_verdicts_are_codes_of_grades():
    study = robustness_study(["default", "model: n matched"], seeds=2, windows=2, refit_seeds=0, progress=False)
    assert set(np.unique(study.verdict)) <= {*range(len(GRADES)), UNJUDGED}
    assert study.rms.sel(workload="refitted").isnull().all()
    same = [id for id in study.claim.values if id not in ("S01", "S02")]
    mine = study.verdict.sel(workload="default", claim=same)
    np.testing.assert_array_equal(mine.sel(reading="default"), mine.sel(reading="model: n matched"))


# --- what is published ------------------------------------------------------------------------------------------------


def test_the_published_verdicts_of_the_default_reading_are_the_scorecards():
    study = load(PUBLISHED / "robustness.nc").sel(workload="default", reading="default")
    for row in claims.read_scorecard(PUBLISHED):
        grade = row["would_be"] or row["status"]
        expected = GRADES.index(grade) if grade in GRADES else UNJUDGED
        assert int(study.verdict.sel(claim=row["id"])) == expected, row["id"]


def test_the_published_verdicts_belong_to_this_code():
    study = load(PUBLISHED / "robustness.nc")
    assert list(study.reading.values) == [reading.name for reading in READINGS]
    for reading in READINGS:
        if reading.quota:
            axes = {name: [value] for name, value in reading.workload.items()}
            waits = qba.sweep([reading.policies[3]], 32, 100, reading.config, progress=False, **axes).wait_mean_s
            value = float(study.value.sel(workload="default", reading=reading.name, claim="N04"))
            assert value == pytest.approx(float(waits.mean()), rel=1e-12)
