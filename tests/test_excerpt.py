"""The real excerpt of the week of 2024, and the stand-in held against it (skipped where the excerpt is not at hand)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qba
from qba import excerpt
from qba.traces import draw_2024, standin
from real_traces import real_trace

OLD_LATENT_CORRELATION = 0.6235
"""Of one Gaussian copula over all requests, for a Pearson correlation of 0.53."""


@pytest.fixture(scope="module")
def folder():
    real_trace("AzureLLMInferenceTrace_code.csv")
    return real_trace(excerpt.FILENAME).parent


@pytest.fixture(scope="module")
def real(folder):
    return excerpt.load_excerpt(folder)


@pytest.fixture(scope="module")
def comparison(real):
    return excerpt.compare(real)


def of(values, source):
    return (values.sel(source=source, value=name, drop=True) for name in ("figure", "low", "high"))


def test_every_dependence_lies_within_the_excerpts_interval(comparison):
    """None was fitted, but for the strength of the dependence among long prompts. The rank correlation of all, 0.37,
    is near the upper end of its interval, 0.39."""
    figure, _, _ = of(comparison.dependence, "stand-in")
    _, low, high = of(comparison.dependence, "excerpt")
    assert ((low <= figure) & (figure <= high)).all()
    real_figure, _, _ = of(comparison.dependence, "excerpt")
    _, low, high = of(comparison.dependence, "stand-in")
    assert ((low <= real_figure) & (real_figure <= high)).all()


def test_lengths_agree_where_the_work_is(comparison):
    """From the 0.75-quantile up each figure lies within the other's 95 % interval, and from the 0.9-quantile up within
    10 %. Below it does not everywhere: the excerpt's shortest prompts are shorter, and its median response is 30 where
    the week's, which the stand-in has, is 41.
    """
    upper = comparison.length_quantile.sel(level=slice(0.75, None))
    real_figure, low, high = of(upper, "excerpt")
    figure, standin_low, standin_high = of(upper, "stand-in")
    assert ((low <= figure) & (figure <= high)).all()
    assert ((standin_low <= real_figure) & (real_figure <= standin_high)).all()
    assert (abs(figure / real_figure - 1).sel(level=slice(0.9, None)) < 0.1).all()


def test_one_gaussian_copula_over_all_is_ruled_out(comparison, real):
    """The same figures with ranks bound as tightly as its correlation needs: beyond the excerpt's interval."""
    _, _, high = of(comparison.dependence.sel(statistic="rank correlation"), "excerpt")
    copula = 6 / np.pi * np.arcsin(OLD_LATENT_CORRELATION / 2)
    assert copula > high + 0.1
    figure, _, _ = of(comparison.dependence.sel(statistic="rank correlation"), "stand-in")
    assert figure < high


def test_correlation_among_long_prompts_is_the_excerpts(real):
    """The excerpt's own rank correlation among long prompts, as a Gaussian copula's parameter, agrees within its error."""
    long = real.prompt_tokens > excerpt.LONG_PROMPT
    found = stats.spearmanr(real.prompt_tokens[long], real.response_tokens[long]).statistic
    latent = 2 * np.sin(np.pi * found / 6)
    error = (1 - latent**2) / np.sqrt(long.sum())
    assert abs(latent - standin.LONG_CORRELATION) < 2 * error


def test_gaps_of_the_excerpt_could_be_the_stand_ins(real):
    """Their burstiness lies among that of 2000 stretches of as many gaps; the paper's 2.9 is a mean over windows."""
    gaps = np.diff(draw_2024(2000 * len(real), seed=4).arrival_s)[: 1999 * len(real)].reshape(1999, -1)
    scv = gaps.var(axis=1) / gaps.mean(axis=1) ** 2
    low, high = np.quantile(scv, (0.025, 0.975))
    assert low < qba.traces.interarrival_scv(real) < high


def test_windows_hold_rows_of_the_excerpt_at_the_papers_load(real):
    parts = excerpt.resampled_windows(real, count=3, requests_per_window=200)
    rows = {
        (max(1, round(0.44 * p)), max(1, round(0.44 * r)))
        for p, r in zip(real.prompt_tokens.tolist(), real.response_tokens.tolist())
    }
    for part in parts:
        assert (len(part) - 1) / part.arrival_s[-1] == pytest.approx(32)
        assert set(zip(part.prompt_tokens.tolist(), part.response_tokens.tolist())) <= rows


def test_table2_of_its_rows(real):
    study = excerpt.excerpt_study(real, count=10)
    assert study.wait_change.sel(policy="FCFS") == 0
    assert -0.5 < study.wait_change.sel(policy="PSF") < study.wait_change.sel(policy="QBA") < 0
    for variable in study.variables.values():
        assert variable.attrs["units"] and variable.attrs["long_name"]


def test_another_file_is_refused(folder, tmp_path):
    name = "AzureLLMInferenceTrace_code.csv"
    (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(qba.traces.MissingTraceError, match=f"no {excerpt.FILENAME} in"):
        excerpt.load_excerpt(tmp_path)
    (tmp_path / excerpt.FILENAME).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(qba.InputError, match="is not the excerpt of the week of 2024"):
        excerpt.load_excerpt(tmp_path)


def test_figures_compare_any_rows():
    """Without the real file: the stand-in against rows of its own lies in its own intervals."""
    found = excerpt.compare(draw_2024(200, seed=5), resamples=50)
    assert found.length_quantile.dims == ("length", "level", "source", "value")
    assert found.attrs["rows"] == 200
    for values in (found.length_quantile, found.dependence):
        low, high = (values.sel(value=name) for name in ("low", "high"))
        assert (low <= high).all()
    figure = found.dependence.sel(source="stand-in", value="figure", statistic="correlation")
    assert figure == pytest.approx(standin.LENGTH_CORRELATION, abs=0.03)
