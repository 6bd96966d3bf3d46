"""The notebooks are fit to be read and compared, and the runner refuses what papermill would let pass."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest

from qba.errors import InputError
from qba.notebooks import (
    NotebookError,
    check_parameters,
    execute_in_place,
    find_notebook,
    run_notebook,
    study_notebooks,
)
from qba.paths import repository

STUDY = study_notebooks()
PUBLISHED = sorted((repository() / "results" / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", STUDY, ids=lambda path: path.stem)
each_notebook_and_copy = pytest.mark.parametrize(
    "path", STUDY + PUBLISHED, ids=lambda path: f"{path.stem}-{'published' if path in PUBLISHED else 'small'}"
)

# A path from the root with at least two names; not a unit (tokens/s), an address or the end of an element of an SVG.
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<)\]])/[\w.-]+/[\w.-]+|\b[A-Z]:\\\\")


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


# --- the notebooks of the study ---------------------------------------------------------------------------------------


def test_the_notebooks_are_numbered_from_zero():
    assert [int(path.stem.partition("_")[0]) for path in STUDY] == list(range(len(STUDY)))
    assert len(STUDY) >= 6


@each_notebook_and_copy
def test_a_notebook_is_executed_top_to_bottom(path: Path):
    """Otherwise nbval would compare nothing and pass."""
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@each_notebook_and_copy
def test_a_notebook_is_valid_and_carries_nothing_volatile(path: Path):
    notebook = json.loads(path.read_text("utf-8"))
    nbformat.validate(notebook)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    assert all(cell["metadata"].keys() <= {"tags"} for cell in notebook["cells"])


@each_notebook
def test_parameters_are_literals_with_a_unit(path: Path):
    tagged = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    source = tagged[0].source
    for statement in ast.parse(source).body:
        assert isinstance(statement, (ast.Assign, ast.AnnAssign)), ast.unparse(statement)
        ast.literal_eval(statement.value)  # raises for anything derived
        line = source.splitlines()[statement.end_lineno - 1]
        assert re.search(r"#\s*\S", line), f"no comment with the unit: {line}"


@each_notebook
def test_no_helper_lives_in_a_notebook(path: Path):
    helpers = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, helpers):
                assert node.end_lineno - node.lineno < 5, ast.unparse(node)


@each_notebook
def test_nothing_is_hidden_from_the_comparison(path: Path):
    for cell in code_cells(path):
        assert set(cell.metadata.get("tags", [])) <= {"parameters"}
        assert "nbval" not in cell.source.lower()


@each_notebook_and_copy
def test_outputs_are_text_and_pictures(path: Path):
    outputs = [output for cell in code_cells(path) for output in cell.outputs]
    assert outputs
    for output in outputs:
        if output.output_type == "stream":
            assert output.name == "stdout", output.text
        else:
            assert output.output_type in ("execute_result", "display_data"), output
            assert output.data.keys() <= {"text/plain", "image/svg+xml"}


@each_notebook_and_copy
def test_no_path_or_machine_is_named(path: Path):
    text = path.read_text("utf-8")
    assert ABSOLUTE_PATH.findall(text) == []
    assert not re.search(rf"\b{re.escape(platform.node())}\b", text)


@pytest.mark.parametrize("text", ["see /srv/data/x.csv", '"/srv/data"', "in (/srv/data)", r'"C:\\data\\x"'])
def test_a_path_would_be_found(text: str):
    assert ABSOLUTE_PATH.search(text)


@pytest.mark.parametrize(
    "text", ["32 requests/s/engine", "https://example.org/a/b", "</g></svg>", "results/small/a.nc"]
)
def test_what_is_no_path_is_not_taken_for_one(text: str):
    assert not ABSOLUTE_PATH.search(text)


@each_notebook
def test_a_notebook_is_committed(path: Path):
    if shutil.which("git") is None or not (repository() / ".git").exists():
        pytest.skip("not a git checkout")
    subprocess.run(["git", "ls-files", "--error-unmatch", path.name], cwd=path.parent, check=True, capture_output=True)


def test_the_published_copies_show_the_present_notebooks():
    assert [path.name for path in PUBLISHED] == [path.name for path in STUDY]
    for path, copy in zip(STUDY, PUBLISHED, strict=True):
        injected = "injected-parameters"
        shown = [cell for cell in nbformat.read(copy, 4).cells if injected not in cell.metadata.get("tags", [])]
        assert [cell.source for cell in shown] == [cell.source for cell in nbformat.read(path, 4).cells], path.name


def test_make_test_compares_every_cell():
    """The Makefile's own arguments, collected: each notebook with each of its cells, and compared strictly."""
    [command] = [line for line in (repository() / "Makefile").read_text().splitlines() if "--nbval" in line]
    arguments = shlex.split(command.partition("-m pytest")[2])
    assert "--nbval" in arguments and not any("lax" in a or "sanitize" in a for a in arguments)
    arguments = [sys.executable, "-m", "pytest", "--collect-only", "-q", *(a for a in arguments if a != "tests")]
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # the caller's, of this run
    listed = subprocess.run(arguments, cwd=repository(), env=own, capture_output=True, text=True, check=True).stdout
    expected = {f"notebooks/{path.name}::Cell {i}" for path in STUDY for i in range(len(code_cells(path)))}
    assert {line for line in listed.splitlines() if "::" in line} == expected


def test_make_reproduce_runs_every_notebook():
    from qba.reproduce import STUDIES  # here, so that the runner's tests go without it

    assert list(STUDIES) == [path.stem for path in STUDY]


@each_notebook
def test_the_full_size_is_a_matter_of_parameters(path: Path):
    from qba.reproduce import STUDIES

    study = STUDIES[path.stem]
    check_parameters(path, study.parameters | ({"seeds": 100} if study.takes_seeds else {}))


# --- the runner -------------------------------------------------------------------------------------------------------

TINY = [
    "seeds = 3  # replications\nrate = 32.0  # requests/s\nrates = [26.0, 32.0]  # requests/s\n"
    "output = 'made.txt'  # file\nshow = True  # whether to print",
    "import os\nfrom pathlib import Path\nfrom qba.errors import InputError",
    "print(seeds, rate, rates, show)\nprint('second line')",
    "if output:\n    Path(os.environ['QBA_RESULTS_DIR'], output).write_text('always the same')",
    "seeds",
]


def write_notebook(path: Path, sources: list[str]) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setenv("QBA_RESULTS_DIR", str(folder))
    return folder


@pytest.fixture
def tiny(tmp_path: Path, results: Path) -> Path:
    return write_notebook(tmp_path / "tiny.ipynb", TINY)


def run(path: Path, parameters: dict | None = None, **options) -> list[nbformat.NotebookNode]:
    output = path.parent / "out" / "executed.ipynb"
    assert run_notebook(path, output, parameters, progress=False, **options) == output
    assert [file.name for file in output.parent.iterdir()] == ["executed.ipynb"]
    return code_cells(output)


def test_parameters_reach_the_notebook(tiny: Path, results: Path):
    given = {"seeds": np.int64(2), "rate": 40, "rates": (30.0, 31), "output": Path("other.txt"), "show": False}
    cells = run(tiny, given, promised=["other.txt"])
    assert cells[3].outputs[0].text == "2 40.0 [30.0, 31.0] False\nsecond line\n"
    assert cells[-1].outputs[0].data["text/plain"] == "2"
    assert [cell.execution_count for cell in cells] == [1, 2, 3, 4, 5, 6]
    assert (results / "other.txt").exists()


def test_a_rerun_gives_the_same_bytes_and_keeps_no_paths(tiny: Path, results: Path):
    output = tiny.parent / "out" / "executed.ipynb"
    run(tiny, {"seeds": 2}, promised=["made.txt"])
    first = output.read_bytes()
    run(tiny, {"seeds": 2}, promised=["made.txt"])
    assert output.read_bytes() == first
    assert str(tiny.parent) not in first.decode()
    assert json.loads(first)["metadata"].keys() == {"kernelspec", "language_info"}


def test_an_unwritten_promise_is_an_error(tiny: Path, results: Path):
    with pytest.raises(NotebookError, match=r"tiny\.ipynb: ran, but did not write .*load_sweep\.nc$"):
        run(tiny, promised=["made.txt", "load_sweep.nc"])


def test_a_promise_is_not_kept_by_an_old_file(tiny: Path, results: Path):
    (results / "made.txt").write_text("always the same")
    with pytest.raises(NotebookError, match=r"did not write .*made\.txt"):
        run(tiny, {"output": ""}, promised=["made.txt"])
    run(tiny, promised=["made.txt"])  # written again with the same content, it is


def test_a_failing_cell_is_told_in_one_line_and_kept(tmp_path: Path, results: Path):
    cells = [*TINY[:3], "raise ValueError('a tale\\nof two lines')", "print('never')"]
    path = write_notebook(tmp_path / "fails.ipynb", cells)
    output = tmp_path / "out.ipynb"
    output.write_text("as it was")
    with pytest.raises(NotebookError) as caught:
        run_notebook(path, output, progress=False)
    kept = tmp_path / "out.failed.ipynb"
    message = str(caught.value)
    assert message.startswith("fails.ipynb: cell 4 failed with ") and "\n" not in message and str(kept) in message
    assert "Traceback" in kept.read_text() and output.read_text() == "as it was"


def test_a_users_mistake_found_by_a_cell_leaves_nothing(tmp_path: Path, results: Path):
    path = write_notebook(tmp_path / "fails.ipynb", [*TINY[:3], "raise InputError('rate = -1')"])
    with pytest.raises(InputError, match=r"^fails\.ipynb: cell 4: rate = -1$"):
        run_notebook(path, tmp_path / "out.ipynb", progress=False)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["fails.ipynb"]


def test_a_cell_that_takes_too_long_is_stopped(tmp_path: Path, results: Path):
    path = write_notebook(tmp_path / "slow.ipynb", ["seeds = 1  # replications", "import time\ntime.sleep(60)"])
    with pytest.raises(NotebookError, match=r"^slow\.ipynb: A cell timed out") as caught:
        run_notebook(path, tmp_path / "out.ipynb", progress=False, timeout=2)
    assert "\n" not in str(caught.value)


def test_a_mistake_is_refused_before_anything_is_written(tiny: Path):
    with pytest.raises(InputError) as caught:
        run(tiny, {"sedes": 2})
    assert str(caught.value) == (
        "tiny.ipynb: no parameter 'sedes' (did you mean 'seeds'?); "
        "it has seeds = 3, rate = 32.0, rates = [26.0, 32.0], output = 'made.txt', show = True"
    )
    assert not (tiny.parent / "out").exists()


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("seeds", 2.5, "int"), ("seeds", True, "int"), ("seeds", "3", "int"), ("seeds", [3], "int"),
        ("rate", "fast", "float"), ("rate", True, "float"), ("rates", 26.0, "list"), ("show", 1, "bool"),
        ("output", 3, "str"), ("output", None, "str"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(tiny: Path, name: str, value: object, needed: str):
    told = f"tiny.ipynb: parameter {name} is {value!r} ({type(value).__name__}); {needed} is needed"
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        check_parameters(tiny, {name: value})


def test_a_wrong_item_of_a_list_is_named(tiny: Path):
    with pytest.raises(InputError, match=re.escape("parameter rates[1] is 'x' (str); float is needed")):
        check_parameters(tiny, {"rates": [1, "x"]})


@pytest.mark.parametrize("name", ["01_load_sweep", "01_load_sweep.ipynb", "load_sweep", "01", "1", 1])
def test_a_notebook_is_found_by_name_or_number(name: str | int):
    assert find_notebook(name) == repository() / "notebooks" / "01_load_sweep.ipynb"


@pytest.mark.parametrize(
    ("name", "nearest"), [("01_load_sweeps", " (did you mean '01_load_sweep'?)"), (77, ""), ("x.ipynb", "")]
)
def test_an_unknown_notebook_is_refused_with_those_there_are(name: str | int, nearest: str):
    given = str(name).removesuffix(".ipynb")
    told = f"no notebook {given!r}{nearest}; there are {', '.join(path.stem for path in STUDY)}"
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        find_notebook(name)


@pytest.mark.parametrize("content", ["", "{}", "not a notebook", '{"nbformat": 4, "cells": []}'])
def test_what_is_no_notebook_is_refused(tmp_path: Path, content: str):
    path = tmp_path / "bad.ipynb"
    path.write_text(content)
    with pytest.raises(InputError, match=r"bad\.ipynb: cannot be read as a notebook") as caught:
        run_notebook(path, tmp_path / "out.ipynb", progress=False)
    assert "\n" not in str(caught.value)


def test_in_place_runs_in_the_notebooks_folder_and_gives_the_same_bytes(tmp_path: Path, results: Path):
    folder = tmp_path / "books"
    folder.mkdir()
    path = write_notebook(folder / "tiny.ipynb", [*TINY, "os.path.basename(os.getcwd())"])
    execute_in_place([path])
    first = path.read_bytes()
    cells = code_cells(path)
    assert cells[-1].outputs[0].data["text/plain"] == "'books'"
    assert [cell.execution_count for cell in cells] == list(range(1, len(TINY) + 2))
    execute_in_place([path])
    assert path.read_bytes() == first
    assert os.listdir(folder) == ["tiny.ipynb"]
