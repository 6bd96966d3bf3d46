"""Columns of requests: what is accepted, what is refused and in which words."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import qba
from qba.requests import COLUMNS, label_long

GOOD = {"arrival_s": [0.0, 1.0, 1.0], "prompt_tokens": [1, 2, 3], "response_tokens": [4, 5, 600]}


def test_columns_are_converted_and_labelled_by_the_response_quantile():
    requests = qba.Requests(**GOOD)
    assert [getattr(requests, name).dtype for name in COLUMNS] == [
        np.float64,
        np.int64,
        np.int64,
        bool,
        bool,
        np.int64,
        np.int64,
    ]
    # 0.85-quantile of 4, 5, 600: place 1.7 of 0…2, so 5 + 0.7 · 595 = 421.5
    assert requests.true_long.tolist() == [False, False, True]
    assert requests.predicted_long.tolist() == requests.true_long.tolist()
    assert len(requests) == 3


def test_labels_above_the_quantile_are_strictly_above():
    assert label_long([7, 7, 7]).tolist() == [False, False, False]
    assert label_long(np.arange(1, 101)).sum() == 15


def test_whole_floats_are_lengths_and_given_labels_are_kept():
    requests = qba.Requests(**GOOD | {"prompt_tokens": [1.0, 2.0, 3.0]}, true_long=[1, 0, 0], predicted_long=[0, 1, 1])
    assert requests.prompt_tokens.tolist() == [1, 2, 3]
    assert requests.true_long.tolist() == [True, False, False]
    assert requests.predicted_long.tolist() == [False, True, True]


def test_columns_cannot_be_changed_and_are_not_the_callers():
    arrival = np.array([0.0, 1.0, 1.0])
    requests = qba.Requests(**GOOD | {"arrival_s": arrival})
    arrival[0] = 9
    assert requests.arrival_s[0] == 0
    with pytest.raises(ValueError):
        requests.arrival_s[0] = 1
    with pytest.raises(AttributeError, match="replace"):
        requests.arrival_s = arrival


def test_replace_and_pickle_keep_the_other_columns():
    requests = qba.Requests(**GOOD)
    changed = pickle.loads(pickle.dumps(requests.replace(response_tokens=[1, 1, 1])))
    assert changed.response_tokens.tolist() == [1, 1, 1]
    assert changed.true_long.tolist() == [False, False, True]
    with pytest.raises(qba.InputError, match="no column 'tokens'"):
        requests.replace(tokens=[1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"arrival_s": []}, "arrival_s is empty"),
        ({"arrival_s": [0, 1]}, "prompt_tokens has 3 values, but arrival_s has 2"),
        ({"arrival_s": [0, 2, 1]}, r"arrival_s\[2\] = 1.0 comes after arrival_s\[1\] = 2.0"),
        ({"arrival_s": [0, float("nan"), 1]}, r"arrival_s\[1\] = nan"),
        ({"arrival_s": [0, 1, float("inf")]}, r"arrival_s\[2\] = inf"),
        ({"arrival_s": [[0, 1, 2]]}, "2 dimensions"),
        ({"arrival_s": ["a", "b", "c"]}, "must hold numbers"),
        ({"arrival_s": [True, True, True]}, "booleans"),
        ({"arrival_s": [0, 1, 1e18]}, r"arrival_s\[2\] = 1e\+18"),
        ({"arrival_s": np.ma.array([0, 1, 2], mask=[0, 1, 0])}, "arrival_s has masked values"),
        ({"prompt_tokens": [1, 0, 3]}, r"prompt_tokens\[1\] = 0"),
        ({"prompt_tokens": [1, -2, 3]}, r"prompt_tokens\[1\] = -2"),
        ({"prompt_tokens": [1, 2.5, 3]}, r"prompt_tokens\[1\] = 2.5"),
        ({"response_tokens": [1, 2, float("nan")]}, r"response_tokens\[2\] = nan"),
        ({"response_tokens": [1, 2, 2**31]}, r"response_tokens\[2\] = 2147483648"),
        ({"response_tokens": [1, 2]}, "response_tokens has 2 values"),
        ({"response_tokens": [[1, 2], [3]]}, "ragged"),
        ({"true_long": [0, 1, 2]}, r"true_long\[2\] = 2"),
        ({"predicted_long": [True]}, "predicted_long has 1 values"),
    ],
)
def test_a_bad_column_is_refused_in_one_line(columns, message):
    with pytest.raises(qba.InputError, match=message) as refusal:
        qba.Requests(**GOOD | columns)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, ValueError)
