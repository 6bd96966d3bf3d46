"""The project installs as it says: declared, locked, the same for conda, and with clear words where it cannot."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from qba.paths import PACKAGE, repository

ROOT = repository()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]

# Needed without an import in the package: xarray and papermill load these by name.
NOT_IMPORTED = {"h5netcdf", "h5py", "ipykernel"}
# Names that differ on conda-forge (ours → theirs). None does today; a new one goes here.
CONDA_NAMES = {"jupyter-client": "jupyter_client"}

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="GNU make is not installed")


def bounds(requirements: list[str]) -> dict[str, str]:
    """{name: lower bound} of requirements, each of which must have exactly one."""
    found = {}
    for requirement in requirements:
        match = re.fullmatch(r"([a-z0-9_-]+)>=([\d.]+)", requirement)
        assert match, f"{requirement!r}: name>=version is expected"
        found[match[1]] = match[2]
    return found


def locked() -> dict[str, str]:
    """{name: version} of requirements.lock."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), flags=re.M))


def declared() -> dict[str, str]:
    """Everything that pyproject.toml names, with its lower bound."""
    groups = [PROJECT["project"]["dependencies"], *EXTRAS.values(), PROJECT["build-system"]["requires"]]
    return {name: bound for group in groups for name, bound in bounds(group).items()}


# --- what is declared -------------------------------------------------------------------------------------------------


def test_conda_gets_the_same_packages_and_bounds():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    listed = [entry for entry in environment["dependencies"] if entry != "pip"]
    ours = {CONDA_NAMES.get(name, name): bound for name, bound in declared().items()}
    ours["python"] = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert bounds(listed) == ours
    assert len(listed) == len(ours), "an entry stands twice"


def test_every_import_of_the_package_is_declared():
    names = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.partition(".")[0])
    foreign = names - set(sys.stdlib_module_names) - {"qba"}
    packages = metadata.packages_distributions()
    imported = {packages[name][0].lower().replace("_", "-") for name in foreign}
    assert imported | NOT_IMPORTED == bounds(PROJECT["project"]["dependencies"]).keys()
    assert not imported & NOT_IMPORTED


def test_the_version_stands_in_the_citation_too():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_the_command_exists():
    module, _, function = PROJECT["project"]["scripts"]["qba"].partition(":")
    tree = ast.parse((ROOT / module.replace(".", "/") / "__init__.py").read_text("utf-8"))
    assert function in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


# --- what is locked ---------------------------------------------------------------------------------------------------


def test_the_lock_holds_everything_declared():
    versions = locked()
    for name, bound in declared().items():
        assert name in versions, f"{name} is not locked: make lock"
        assert _numbers(versions[name]) >= _numbers(bound), name


def test_every_locked_package_has_hashes():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^ *#.*\n", "", text, flags=re.M), flags=re.M)[1:]
    assert len(entries) == len(locked()) > 50, "one version of each package, whichever the Python"
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_the_lock_names_no_place():
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links|^-e|\s@\s|/\w+/", text, flags=re.M)


# --- make -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a space in its name that holds what setting up reads."""
    folder = tmp_path / "a check out"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # What a make around these tests was told must not reach this one.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "PYTHON")
    }
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def fake_python(folder: Path, body: str) -> str:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return f"PYTHON={script}"


@needs_make
@pytest.mark.parametrize("target", ["reproduce", "test", "bench", "lab", "clean", "lock"])
def test_make_alone_lists_the_targets(target: str):
    assert re.search(rf"^make {target} +\w", make(ROOT).stdout, flags=re.M)


@needs_make
def test_a_missing_python_is_told_in_one_line(checkout: Path):
    done = make(checkout, "test", "PYTHON=python3.x")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "Python 3.11 or newer is needed; python3.x is not found. Name one: make PYTHON=python3.12 ..."
    )


@needs_make
def test_an_old_python_is_told_in_one_line(checkout: Path):
    old = fake_python(checkout, 'if [ "$1" = -V ]; then echo Python 3.9.2; else exit 1; fi')
    done = make(checkout, "reproduce", old)
    assert done.returncode != 0
    assert re.match(r"Python 3\.11 or newer is needed; .* is Python 3\.9\.2\.", done.stderr.splitlines()[0])
    assert not (checkout / ".venv").exists()


@needs_make
def test_a_python_without_venv_is_told_in_one_line(checkout: Path):
    bare = fake_python(checkout, 'case "$2" in *venv*) echo noise >&2; exit 1;; esac')
    done = make(checkout, "test", bare)
    assert done.returncode != 0
    assert "lacks the venv module" in done.stderr.splitlines()[0]


@needs_make
def test_set_up_is_done_again_where_the_folder_was_moved_or_the_lock_changed(checkout: Path):
    venv = checkout / ".venv"
    venv.mkdir()
    (venv / "built").write_text(f"{checkout} python3\n")
    setting_up = "setting up .venv"
    assert setting_up not in make(checkout, "--dry-run", "test").stdout
    assert setting_up in make(checkout, "--dry-run", "test", "PYTHON=python3.13").stdout
    assert setting_up in make(checkout, "--dry-run", "test", "--what-if=requirements.lock").stdout
    moved = checkout.rename(checkout.parent / "moved")
    assert setting_up in make(moved, "--dry-run", "test").stdout


@needs_make
def test_continuous_integration_runs_the_readmes_command():
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
    commands = make(ROOT, "--dry-run", "test").stdout
    assert re.search(r"-m pytest .*\btests\b", commands)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
