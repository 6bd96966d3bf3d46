"""Engine and plain-Python twin side by side, for cases drawn at random and cases worked by hand."""

from __future__ import annotations

import naive
import numpy as np

import qba


def both(requests, policy, config):
    """Simulate with engine and twin, assert that nothing differs, return the engine's (run, batches)."""
    run, batches = qba.simulate(requests, policy, config, record=True)
    expected_run, rows = naive.simulate(requests, policy, config)
    assert set(expected_run) == set(run.data_vars)
    for name, expected in expected_run.items():
        np.testing.assert_array_equal(run[name].values, expected, err_msg=name)
    assert set(rows[0]) == set(batches.data_vars)
    assert batches.sizes["batch"] == len(rows)
    for name in rows[0]:
        np.testing.assert_array_equal(batches[name].values, [row[name] for row in rows], err_msg=name)
    return run, batches


def check(dataset, **columns):
    """Assert hand-worked values, exactly."""
    for name, expected in columns.items():
        np.testing.assert_array_equal(dataset[name].values, expected, err_msg=name)


def unit_engine(**options):
    """Every batch takes one second whatever it holds, so that boundaries fall on whole seconds."""
    return qba.EngineConfig(
        **{"kv_capacity": 1000, "kv_safety": 1.0, "batch_overhead_s": 1.0, "token_time_s": 0.0} | options
    )
