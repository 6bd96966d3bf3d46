"""The report: whole, self-contained, escaped, and the same bytes each time."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import vl_convert
import xarray as xr
from small_results import make_scorecard, write_results

from qba import claims, figures, report
from qba.errors import InputError
from qba.results import save


class Page(HTMLParser):
    """Collects tags, visible text and scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text.append(data)

    def handle_endtag(self, tag):
        self._inside = ""


def write_all(folder: Path) -> Path:
    write_results(folder)
    for name in set(claims.DATASETS) - {path.stem for path in folder.glob("*.nc")}:
        labels = {"units": "1", "long_name": "placeholder"}
        save(xr.Dataset({"x": ((), 1.0, labels)}), folder / f"{name}.nc", parameters={"of": name})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    path = report.write_report(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_claim_stands_with_its_status_and_note(page: Page):
    text = "\n".join(page.text)
    for row in make_scorecard():
        for key in ("id", "text", "status", "note"):
            assert row[key] in text
    for status, number in claims.counts(make_scorecard()).items():
        assert re.search(rf"{number}\s+{status}", text)
    assert "0.74…0.94" in text and "A below B (rate 26): 0.1…0.5 s" in text
    # Signs: +5 % of N01; a distance that is rounded to zero has none.
    assert "+5 %" in text and "−25 %" in text and "−0.0" not in text


def test_every_figure_has_a_place_a_caption_and_a_specification(page: Page):
    places = {attrs.get("id") for tag, attrs in page.tags if tag == "div"}
    text = "".join(page.text)
    (charts,) = [json.loads(script) for script in page.scripts if script.startswith('{"config"')]
    assert list(charts["specs"]) == [name for name, figure in figures.FIGURES.items() if figure.interactive]
    for name, figure in figures.FIGURES.items():
        assert (f"chart-{name}" in places) == figure.interactive and figure.caption in text


def test_the_page_draws_the_published_figures(page: Page, folder: Path):
    (charts,) = [json.loads(script) for script in page.scripts if script.startswith('{"config"')]
    read = figures.reader(folder)
    for name in ("fig2b", "fig3b"):
        svg = vl_convert.vegalite_to_svg(charts["specs"][name] | {"config": charts["config"]})
        assert svg.strip() == figures.to_svg(figures.draw(name, read)).strip()


def test_nothing_is_fetched(html: str, page: Page):
    """Nothing but pictures from the folder beside the page, each of which `figures.draw_all` writes there."""
    allowed = {"html", "head", "meta", "title", "style", "body"}
    pictures = [attrs.pop("src") for tag, attrs in page.tags if tag == "img"]
    assert pictures == [f"figures/{name}.svg" for name, figure in figures.FIGURES.items() if not figure.interactive]
    for tag, attrs in page.tags:
        assert not {"src", "href", "srcset", "data", "action", "background", "poster"} & attrs.keys(), tag
    assert allowed <= {tag for tag, _ in page.tags}
    policy = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "http" not in policy
    bundle = vl_convert.javascript_bundle(vl_version=figures.published.VEGA_LITE)
    assert html.count(bundle) == 1
    # The libraries hold names of namespaces and of a help page that is switched off; the page's own part has none.
    own = html.replace(bundle, "")
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|url\(|@import", own)
    assert "actions: false" in own


def test_text_is_escaped(html: str, page: Page):
    assert "claim <N01>" in "".join(page.text)
    assert "claim <N01>" not in html and "claim &lt;N01&gt;" in html and "claim \\u003cN01>" in html
    assert len(page.scripts) == 3  # no script ends early or begins in a text


def test_table2_and_provenance(page: Page, folder: Path):
    text = "".join(page.text)
    study = figures.reader(folder)("azure_standin")
    assert "Stand-in for a trace. 6 windows" in text
    assert f"{float(study.wait_mean_s.sel(policy='QBA').mean()):.3f}" in text
    assert f"{float(study.wait_p99_true_long_s.sel(policy='PSF').median()):.2f}" in text
    assert text.count("conversation") >= 8  # two labels, four policies
    for name in {*claims.DATASETS, "azure_2023"}:
        assert f"{name}.nc" in text and f'"of": "{name}"' in text
    assert study.attrs["qba_code"] in text and study.attrs["qba_versions"] in text
    assert '"azure_2023.csv": "ab12"' in text


def test_the_same_results_give_the_same_bytes(html: str, tmp_path: Path):
    assert report.write_report(write_all(tmp_path)).read_text(encoding="utf-8") == html


def test_a_missing_dataset_is_named_and_the_old_report_stays(tmp_path: Path):
    write_all(tmp_path)
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "azure_2023.nc").unlink()
    with pytest.raises(InputError, match=r"azure_2023\.nc: no such file"):
        report.write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"
