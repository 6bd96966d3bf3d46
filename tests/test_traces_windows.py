"""Windows: equal counts, rate and lengths as asked, structure kept; merging by wall clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qba
from qba.requests import label_long
from qba.traces import Trace, interarrival_scv, length_correlation, merge, read_dated, relabel, rescale, windows
from qba.traces.windows import LABELS, labelled_length
from real_traces import real_trace


def trace(arrivals, prompts=None, responses=None):
    n = len(arrivals)
    return qba.Requests(
        arrival_s=arrivals, prompt_tokens=prompts or range(1, n + 1), response_tokens=responses or range(n, 0, -1)
    )


def test_windows_by_hand():
    requests = trace([0, 1, 4, 10, 10, 30, 99], [100, 1, 25, 1000, 3, 5, 7], [10, 20, 30, 40, 50, 60, 70])
    first, second = windows(requests, count=2, rate=2.0, length_scale=0.44)
    assert first.arrival_s.tolist() == [0.0, 0.25, 1.0]  # 2 gaps over 4 s become 1 s
    assert first.prompt_tokens.tolist() == [44, 1, 11]
    assert first.response_tokens.tolist() == [4, 9, 13]
    assert second.arrival_s.tolist() == [0.0, 0.0, 1.0]
    assert second.prompt_tokens.tolist() == [440, 1, 2]  # the seventh request belongs to no window


@given(
    gaps=st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=60),
    count=st.integers(1, 3),
    rate=st.floats(0.1, 100),
    length_scale=st.floats(0.01, 2),
)
def test_rate_length_and_structure(gaps, count, rate, length_scale):
    requests = trace(np.cumsum(gaps))
    parts = windows(requests, count, rate, length_scale)
    size = len(requests) // count
    assert [len(part) for part in parts] == [size] * count
    for k, part in enumerate(parts):
        rows = slice(k * size, (k + 1) * size)
        assert part.arrival_s[0] == 0
        assert (size - 1) / part.arrival_s[-1] == pytest.approx(rate)
        before = np.diff(requests.arrival_s[rows])
        np.testing.assert_allclose(np.diff(part.arrival_s) / part.arrival_s[-1], before / before.sum(), atol=1e-9)
        scaled = requests.prompt_tokens[rows] * length_scale
        assert (abs(part.prompt_tokens - np.maximum(scaled, 1)) <= 0.5).all()
        assert (part.response_tokens >= 1).all()
        assert (part.true_long == label_long(part.response_tokens)).all()


def test_labels_by_total_and_per_window():
    requests = trace(np.arange(40.0), prompts=[1] * 39 + [100], responses=list(range(20, 0, -1)) * 2)
    by_response = windows(requests, 2, length_scale=1)
    assert [np.flatnonzero(part.true_long).tolist() for part in by_response] == [[0, 1, 2], [0, 1, 2]]
    by_total = windows(requests, 2, length_scale=1, label_by="total")
    assert [np.flatnonzero(part.true_long).tolist() for part in by_total] == [[0, 1, 2], [0, 1, 19]]
    for part in by_response + by_total:
        assert (part.predicted_long == part.true_long).all()


def test_a_weight_between_prompt_and_response():
    requests = trace([0, 1, 2, 3], [10, 20, 30, 40], [9, 1, 2, 3])
    assert labelled_length(requests, 2).tolist() == [28, 22, 34, 46]
    for name, weight in LABELS.items():
        assert (labelled_length(requests, name) == labelled_length(requests, weight)).all()
    assert labelled_length(requests, "prompt").tolist() == [10, 20, 30, 40]
    assert labelled_length(requests, "response").tolist() == [9, 1, 2, 3]


def test_threshold_of_each_window_or_of_the_whole():
    requests = trace(np.arange(40.0), responses=[*range(1, 21), *range(101, 121)])
    own = windows(requests, 2, length_scale=1)
    assert [np.flatnonzero(part.true_long).tolist() for part in own] == [[17, 18, 19], [17, 18, 19]]
    whole = windows(requests, 2, length_scale=1, label_threshold="whole")
    assert [np.flatnonzero(part.true_long).tolist() for part in whole] == [[], [14, 15, 16, 17, 18, 19]]
    for part in whole:
        assert (part.predicted_long == part.true_long).all()


def test_thresholds_agree_on_a_single_window():
    requests = trace(np.arange(40.0), responses=list(range(40, 0, -1)))
    [own], [whole] = (windows(requests, 1, label_threshold=threshold) for threshold in ("window", "whole"))
    assert (own.true_long == whole.true_long).all()


def test_relabelling_changes_nothing_else():
    part = windows(trace(np.arange(40.0)), 2)[1]
    changed = relabel(part, "total")
    for name in ("arrival_s", "prompt_tokens", "response_tokens"):
        assert (getattr(changed, name) == getattr(part, name)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: windows(r, 4), "7 requests make no 4 windows of at least 2"),
        (lambda r: windows(r, 3), r"window 1 \(requests 2..3\) spans no time"),
        (lambda r: windows(r, 0), "count = 0"),
        (lambda r: windows(r, 2.5), "count = 2.5"),
        (lambda r: windows(r, 1, rate=0), "rate = 0"),
        (lambda r: windows(r, 1, rate=float("nan")), "rate = nan"),
        (lambda r: windows(r, 1, length_scale=-1), "length_scale = -1"),
        (lambda r: windows(r, 1, label_by="work"), "label_by = 'work', but it must be one of response, total, prompt"),
        (lambda r: windows(r, 1, label_by=-0.5), "label_by = -0.5, but it must be one of .* or a weight of at least 0"),
        (lambda r: windows(r, 1, label_by=float("nan")), "label_by = nan, but"),
        (lambda r: windows(r, 1, label_by=True), "label_by = True, but"),
        (
            lambda r: windows(r, 1, label_threshold="run"),
            "label_threshold = 'run', but it must be one of window, whole",
        ),
        (lambda r: rescale(trace([3, 3, 3])), "3 requests arrive at once"),
        (lambda r: interarrival_scv(trace([0, 1])), "at least 3 requests"),
        (lambda r: interarrival_scv(trace([2, 2, 2])), "have no gaps to compare"),
    ],
)
def test_what_cannot_be_cut_is_refused(call, message):
    with pytest.raises(qba.InputError, match=message):
        call(trace([0, 1, 2, 2, 3, 4, 5]))


def test_scv_by_hand():
    assert interarrival_scv(trace([0, 1, 2, 3])) == 0
    assert interarrival_scv(trace([0, 0, 2])) == 1  # gaps 0 and 2: mean 1, variance 1
    assert interarrival_scv(trace([5, 6, 9])) == pytest.approx(0.25)


def test_scv_does_not_depend_on_the_rate():
    requests = qba.synthetic(seed=1)
    assert interarrival_scv(rescale(requests, 5.0)) == pytest.approx(interarrival_scv(requests))


def test_length_correlation():
    assert length_correlation(trace([0, 1, 2, 3], [1, 2, 3, 4], [2, 4, 6, 8])) == pytest.approx(1)
    assert length_correlation(trace([0, 1, 2, 3], [1, 2, 3, 4], [4, 3, 2, 1])) == pytest.approx(-1)
    assert np.isnan(length_correlation(trace([0, 1, 2], [1, 2, 3], [7, 7, 7])))


def test_merge_by_wall_clock():
    start = np.datetime64("2023-11-16T18:15:46.680590000")
    a = Trace(trace([0, 1.0, 2.5], [1, 2, 3]), start, counts={"response tokens 0": 1})
    b = Trace(trace([0, 1.5], [10, 20]), start + np.timedelta64(1, "s"), counts={"response tokens 0": 2})
    merged = merge(a, b)
    assert merged.requests.arrival_s.tolist() == [0, 1, 1, 2.5, 2.5]
    assert merged.requests.prompt_tokens.tolist() == [1, 2, 10, 3, 20]
    assert (merged.start, merged.dropped) == (start, 3)
    swapped = merge(b, a)
    assert swapped.requests.prompt_tokens.tolist() == [1, 10, 2, 20, 3]
    assert swapped.start == start


def test_merge_needs_a_common_clock():
    dated = Trace(trace([0, 1]), np.datetime64("2023-11-16T18:15:46"))
    with pytest.raises(qba.InputError, match="the second trace counts seconds from an origin of its own"):
        merge(dated, Trace(trace([0, 1])))


@pytest.mark.parametrize(
    ("which", "size", "tokens", "scv", "correlation"),
    [
        ("conversation", 193, (601, 0.5), (1.0, 0.05), -0.11),
        ("code", 88, (913, 0.5), (22, 0.5), 0.00),
        ("merged", 281, (698, 0.5), (1.5, 0.05), -0.20),
    ],
)
def test_the_traces_of_2023_are_not_the_papers_load(which, size, tokens, scv, correlation):
    """The paper's windows have 772 tokens per request and gaps of SCV 2.9; these have not."""
    code = read_dated(real_trace("AzureLLMInferenceTrace_code.csv"))
    conversation = read_dated(real_trace("AzureLLMInferenceTrace_conv.csv"))
    requests = {"code": code, "conversation": conversation, "merged": merge(code, conversation)}[which].requests
    parts = windows(requests)
    assert [len(part) for part in parts] == [size] * 100
    mean_tokens = np.mean([part.prompt_tokens.mean() + part.response_tokens.mean() for part in parts])
    assert mean_tokens == pytest.approx(tokens[0], abs=tokens[1])
    assert np.mean([interarrival_scv(part) for part in parts]) == pytest.approx(scv[0], abs=scv[1])
    assert length_correlation(requests) == pytest.approx(correlation, abs=0.005)
