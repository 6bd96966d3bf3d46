"""The options of aging sample and blocked candidates by hand, and every option as an axis and as a mistake.

Each hand-worked case is checked on engine and twin together, exactly. Preemption has its own file.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SMALL, cases, policies, policy_of, table
from twin import both, check, unit_engine

import qba

# ------------------------------------------------------------------------------------------------------ whose waits


@pytest.mark.parametrize(
    ("classes", "thresholds", "start", "finish", "promoted"),
    [
        ("all", [0, 0.375, 1.25, np.inf, np.inf], [0, 1, 2], [2, 4, 5], 1),
        ("predicted-long", [np.inf, 0.5, 1.5, np.inf, np.inf], [0, 2, 1], [2, 5, 4], 0),
    ],
)
def test_the_queue_makes_the_threshold_by_hand(classes, thresholds, start, finish, promoted):
    # B = 2, q = 1, T = 1, γ = 0.5; all P 2, D 1; 1 is long. All waits, or those of long requests:
    # t=0  0 waits: θ = 0; or no long one does: θ = inf. 0 starts
    # t=1  1 has waited 0.5, 2 has waited 0.25: θ = 0.25 + 0.25/2, 1 is aged and promoted;
    #      or θ = 0.5, its own wait, 1 is not aged and 2 starts. 0 decodes
    # t=2  2 waits alone: θ = 1.25; or 1 does: θ = 1.5, and it starts as it is its turn
    # t=3  nobody waits: θ = inf. The first decodes, the second prefills 1     t=4  the second decodes
    load = table([(0, 2, 1, "S"), (0.5, 2, 1, "L"), (0.75, 2, 1, "S")])
    policy = qba.AA(aging_quantile=0.5, aging_sample="queue", aging_classes=classes)
    run, batches = both(load, policy, unit_engine(token_budget=2, decode_block=1))
    check(batches, threshold_s=thresholds)
    check(run, start_s=start, finish_s=finish, promoted=[0, promoted, 0], aged_fraction=promoted)


def test_the_queue_of_predicted_long_requests_makes_the_threshold_by_hand():
    # As above with another long one. Only the waits of 1 and 2 are looked at.
    # t=0  θ = inf; 0 starts
    # t=1  1 and 2 have waited 0.5 and 0.25: θ = 0.375, 1 is promoted past 3
    # t=2  2 has waited 1.25: θ = 1.25, 2 is not aged: 3 starts
    # t=3  θ = 2.25; 1 decodes, 3 prefills 1      t=4  θ = 3.25; 3 decodes, 2 starts, prefills 1
    # t=5  nobody waits: θ = inf; 2 prefills 1    t=6  2 decodes
    load = table([(0, 2, 1, "S"), (0.5, 2, 1, "L"), (0.75, 2, 1, "L"), (0.75, 2, 1, "S")])
    policy = qba.AA(aging_quantile=0.5, aging_sample="queue", aging_classes="predicted-long")
    run, batches = both(load, policy, unit_engine(token_budget=2, decode_block=1))
    check(batches, threshold_s=[np.inf, 0.375, 1.25, 2.25, 3.25, np.inf, np.inf])
    check(run, start_s=[0, 1, 4, 2], finish_s=[2, 4, 7, 5], promoted=[0, 1, 0, 0])


def test_the_last_two_starts_make_the_threshold_by_hand():
    # B = 2, q = 1, T = 1, γ = 0.5, window 2; all P 2, D 1; 3 is long.
    # t=0  0 starts (wait 0)      t=1  θ = 0; 0 decodes, 1 starts (wait 1)
    # t=2  θ = (0 + 1)/2; 1 prefills 1, 2 starts (wait 1.5)
    # t=3  θ = (1 + 1.5)/2; 1 decodes, 2 prefills 1
    # t=4  θ = 1.25; 2 decodes; 3 has waited 1.125: not aged, though more than 1, the median of all three waits;
    #      4 starts (wait 0.5)
    # t=5  θ = (0.5 + 1.5)/2; 4 prefills 1; 3 has waited 2.125: promoted
    # t=6  θ = (0.5 + 2.125)/2; 4 decodes, 3 prefills 1      t=7  3 decodes
    load = table([(0, 2, 1, "S"), (0, 2, 1, "S"), (0.5, 2, 1, "S"), (2.875, 2, 1, "L"), (3.5, 2, 1, "S")])
    policy = qba.AA(aging_quantile=0.5, aging_window=2)
    run, batches = both(load, policy, unit_engine(token_budget=2, decode_block=1))
    check(batches, threshold_s=[np.inf, 0, 0.5, 1.25, 1.25, 1, 1.3125, 1.3125])
    check(run, start_s=[0, 1, 2, 5, 4], finish_s=[2, 4, 5, 8, 7], promoted=[0, 0, 0, 1, 0])


@pytest.mark.parametrize(("classes", "threshold"), [("all", 0.5), ("predicted-long", 0.75)])
def test_a_window_takes_starts_in_order_of_admission_by_hand(classes, threshold):
    # B = 4, q = 1, T = 1, window 1; all P 1, D 1.
    # t=0  0 starts (wait 0)
    # t=1  nothing is owed, so short 2 starts first (wait 0.5), then long 1 (wait 0.75)
    # t=2  the last start was that of 1; 3 starts (wait 0.5)
    # t=3  the last start was that of 3, or still that of 1 where only long ones count
    load = table([(0, 1, 1, "S"), (0.25, 1, 1, "L"), (0.5, 1, 1, "S"), (1.5, 1, 1, "S")])
    policy = qba.QBA(aging_window=1, aging_classes=classes)
    run, batches = both(load, policy, unit_engine(token_budget=4, decode_block=1))
    check(run, start_s=[0, 1, 1, 2], promoted=[0] * 4)
    check(batches, threshold_s=[np.inf, 0 if classes == "all" else np.inf, 0.75, threshold])


@settings(SMALL, max_examples=50)
@given(case=cases(max_size=12), policy=st.sampled_from([qba.AA, qba.QBA]).flatmap(policy_of), longer=st.integers(0, 3))
def test_a_window_as_long_as_the_history_changes_nothing(case, policy, longer):
    requests, config = case
    whole = dataclasses.replace(policy, aging_sample="history", aging_window=None)
    windowed = dataclasses.replace(whole, aging_window=len(requests) + longer)
    pair = [qba.simulate(requests, p, config, record=True) for p in (whole, windowed)]
    for one, other in zip(*pair):
        xr.testing.assert_equal(one, other)


# -------------------------------------------------------------------------------------------------- blocked and skipped

# Safe limit 8 of 10. Requests 1 and 2 (P 6) find at most 3 tokens of room left while request 0 (P 2, D 4) runs.
TIGHT_ENGINE = {"token_budget": 4, "decode_block": 1, "kv_capacity": 10, "kv_safety": 0.8, "on_blocked": "skip"}


@pytest.mark.parametrize(("policy", "big", "small"), [(qba.FCFS(), "L", "S"), (qba.PSF(), "S", "L")])
def test_blocked_requests_in_ordinary_order_are_skipped_by_hand(policy, big, small):
    # B = 4, q = 1, T = 1.
    # t=0  0 starts
    # t=1  0 decodes: live 3; 1 and 2 are refused, 3 + 6 > 8; 3 starts: 3 + 1 <= 8
    # t=2  0, 3 decode: live 6, 1 and 2 refused; 3 leaves at 3
    # t=3  0 decodes: live 5, both refused     t=4  live 6, both refused; 0 leaves at 5
    # t=5  1 starts, 4 of 6     t=6  1 prefills 2: live 6, 2 refused     t=7  1 decodes: live 7, 2 refused; 1 leaves
    # t=8  2 starts, 4 of 6     t=9  2 prefills 2                        t=10 2 decodes
    load = table([(0, 2, 4, "S"), (0.5, 6, 1, big), (0.5, 6, 1, big), (0.5, 1, 1, small)])
    run, batches = both(load, policy, unit_engine(**TIGHT_ENGINE))
    check(run, start_s=[0, 5, 8, 1], finish_s=[5, 8, 11, 3], blocked_admissions=10)
    check(batches, live_kv_tokens=[2, 4, 6, 5, 6, 4, 6, 7, 4, 6, 7], admissions=[1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0])
    waiting = {"S": [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "L": [0, 2, 2, 2, 2, 2, 1, 1, 1, 0, 0]}  # 0 and 3; 1 and 2
    if big == "S":
        waiting = {"S": [1, 2, 2, 2, 2, 2, 1, 1, 1, 0, 0], "L": [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]}
    check(batches, waiting_short=waiting["S"], waiting_long=waiting["L"])


@pytest.mark.parametrize("label", ["S", "L"])
@pytest.mark.parametrize("policy", [qba.AA(aging_quantile=0.5), qba.QBA(quota=1, aging_quantile=0.5)])
def test_a_refused_promotion_is_skipped_and_no_other_takes_its_place_by_hand(policy, label):
    # B = 4, q = 1, T = 1.
    # t=0  0 starts; QBA's quota of one is earned at once
    # t=1  θ = 0: 1 is aged and first. 0 decodes: live 3, 3 + 6 > 8: refused and put aside. 2 starts in ordinary order,
    #      3 + 1 <= 8: not promoted, though aged if it is long. 1 counts as refused once: 1
    # t=2  0, 2 decode: live 6, 1 refused: 2. 2 leaves at 3     t=3  live 5, refused: 3     t=4  live 6, refused: 4
    # t=5  1 starts, promoted: QBA's debt has stood      t=6  1 prefills 2 of 6: the debt is paid     t=7  1 decodes
    # A QBA short that completes while the debt stands does not count: c = 1 till then.
    load = table([(0, 2, 4, "S"), (0.5, 6, 1, "L"), (0.5, 1, 1, label)])
    run, batches = both(load, policy, unit_engine(**TIGHT_ENGINE))
    check(run, start_s=[0, 5, 1], finish_s=[5, 8, 3], promoted=[0, 1, 0], blocked_admissions=4)
    check(run, promoted_fraction=1 if label == "S" else 0.5, aged_fraction=1)
    check(batches, live_kv_tokens=[2, 4, 6, 5, 6, 4, 6, 7], promotions=[0, 0, 0, 0, 0, 1, 0, 0])
    if policy.name == "QBA":
        check(batches, debt=[1, 1, 1, 1, 1, 1, 0, 0], counter=[1, 1, 1, 1, 1, 1, 0, 0])


def test_aa_promotes_until_a_promotion_is_refused_by_hand():
    # B = 6, q = 1, T = 1, M_safe = M_max = 8, γ = 0.5. All but 0 come at 0.5, and at t=1 θ = 0: 1, 2, 3, 4 are aged.
    # t=1  0 decodes: live 3. 1 (P 1) is promoted: live 4. 2 (P 6) is refused, and nothing is promoted any more. In
    #      ordinary order short 5 (P 1), and of the long ones 3 (P 1), not 4 (P 3, as 6 + 3 > 8), and 6 (P 1): live 7
    # t=2  0, 1, 3, 5, 6 decode: live 12; 2 and 4 are refused. All but 0 (P 2, D 4) leave: live 4
    # t=3  0 decodes: live 5. θ = 0.5, 2 is refused as promoted. 4 is aged too and fits, 5 + 3 <= 8: it starts in ordinary
    #      order, not promoted
    # t=4  0 and 4 decode: live 10, 2 is refused; both leave      t=5  2 starts, promoted      t=6  2 decodes
    rows = [(1, "L"), (6, "L"), (1, "L"), (3, "L"), (1, "S"), (1, "L")]
    load = table([(0, 2, 4, "S")] + [(0.5, prompt, 1, label) for prompt, label in rows])
    config = unit_engine(token_budget=6, decode_block=1, kv_capacity=8, on_blocked="skip")
    run, batches = both(load, qba.AA(aging_quantile=0.5), config)
    check(run, start_s=[0, 1, 5, 1, 3, 1, 1], promoted=[0, 1, 1, 0, 0, 0, 0], blocked_admissions=6)
    check(batches, live_kv_tokens=[2, 7, 12, 8, 10, 6, 7], promotions=[0, 1, 0, 0, 0, 1, 0])


@settings(SMALL, max_examples=100)
@given(case=cases(), policy=policies())
def test_stop_and_skip_agree_where_nobody_is_refused(case, policy):
    requests, config = case
    engines = [dataclasses.replace(config, on_blocked=value) for value in ("stop", "skip")]
    stop, skip = (qba.simulate(requests, policy, engine) for engine in engines)
    assert (stop.blocked_admissions == 0) == (skip.blocked_admissions == 0)
    if stop.blocked_admissions == 0:
        xr.testing.assert_equal(stop, skip)


# ------------------------------------------------------------------------------------------------- axes and mistakes


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("aging_sample", ["history", "queue"]),
        ("aging_window", [5, 50]),
        ("on_blocked", ["stop", "skip"]),
        ("on_overflow", ["count", "preempt"]),
    ],
)
def test_options_are_axes_of_sweeps(axis, values):
    swept = qba.sweep([qba.QBA()], rate=40, seeds=[3], horizon_s=[10], progress=False, **{axis: values})
    points = []
    for value in values:
        of_policy = axis.startswith("aging")
        policy = qba.QBA(**{axis: value}) if of_policy else qba.QBA()
        config = qba.EngineConfig() if of_policy else qba.EngineConfig(**{axis: value})
        expected = qba.summarize(qba.simulate(qba.synthetic(40, 3, horizon_s=10), policy, config))
        points.append(swept.sel({"policy": "QBA", "rate": 40, "seed": 3, "horizon_s": 10, axis: value}))
        xr.testing.assert_equal(points[-1].reset_coords(drop=True), expected.drop_attrs())
    assert points[0].wait_mean_s != points[1].wait_mean_s
    assert (points[1].evictions > 0) == (axis == "on_overflow")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: qba.AA(aging_sample="window"),
            "AA: aging_sample = 'window', but it must be one of 'history', 'queue'",
        ),
        (lambda: qba.QBA(aging_sample=None), "QBA: aging_sample = None"),
        (lambda: qba.QBA(aging_window=0), "QBA: aging_window = 0, but it must be a whole number of at least 1"),
        (lambda: qba.AA(aging_window=2.5), "AA: aging_window = 2.5"),
        (lambda: qba.AA(aging_window="all"), "AA: aging_window = 'all'"),
        (lambda: qba.AA(aging_window=7, aging_sample="queue"), "AA: aging_window = 7 .*aging_sample = 'queue'"),
        (lambda: qba.PSF(aging_window=7), "PSF has no parameter 'aging_window'"),
        (lambda: qba.EngineConfig(on_blocked="pass"), "on_blocked = 'pass', but it must be one of 'stop', 'skip'"),
        (lambda: qba.EngineConfig(on_blocked=None), "on_blocked = None"),
        (lambda: qba.EngineConfig(on_overflow=True), "on_overflow = True, but it must be one of 'count', 'preempt'"),
        (lambda: qba.sweep([qba.AA()], aging_window=[None, 5]), "axis aging_window must be a number"),
        (lambda: qba.sweep([qba.AA()], on_blocked=["stop", "go"], seeds=1, progress=False), "on_blocked = 'go'"),
        (lambda: qba.sweep([qba.AA(aging_sample="queue")], aging_window=[5], progress=False), "aging_window = 5 "),
        (lambda: qba.sweep([qba.FCFS()], aging_window=[5]), "unknown axis 'aging_window'"),
    ],
)
def test_a_wrong_option_is_refused(make, message):
    with pytest.raises(qba.InputError, match=message):
        make()
