"""Result files: written whole or not at all, the same bytes each time, refused with one clear line when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from qba import results
from qba.errors import InputError
from qba.paths import PACKAGE, repository
from qba.reproduce import STUDIES

PARAMETERS = {"rate": [26.0, 32.0], "seeds": 3, "policies": ["FCFS", "QBA"]}


def make_dataset() -> xr.Dataset:
    rng = np.random.default_rng(7)
    shape = (2, 2, 40)
    dataset = xr.Dataset(
        {
            "wait_mean_s": (("policy", "rate", "seed"), rng.gamma(2.0, 3.0, shape), _labels("s", "mean waiting time")),
            "batches": (("policy", "rate", "seed"), rng.integers(0, 9999, shape), _labels("1", "batches")),
            "promoted": (("policy",), np.array([False, True]), _labels("1", "promotes")),
            "phi": ((), np.nan, _labels("1", "promoted fraction")),
        },
        coords={
            "policy": ("policy", ["FCFS", "QBA"], _labels("1", "policy")),
            "rate": ("rate", [26.0, 32.0], _labels("requests/s", "arrival rate")),
            "seed": ("seed", np.arange(40), _labels("1", "replication")),
        },
    )
    return dataset


def _labels(units: str, long_name: str) -> dict[str, str]:
    return {"units": units, "long_name": long_name}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return results.save(make_dataset(), tmp_path / "run.nc", parameters=PARAMETERS, sources={"trace.csv": "ab12"})


# --- what is written --------------------------------------------------------------------------------------------------


def test_what_is_loaded_is_what_was_saved(saved: Path):
    loaded = results.load(saved)
    xr.testing.assert_equal(loaded, make_dataset())
    for name, variable in make_dataset().variables.items():
        assert loaded[name].attrs == variable.attrs
        assert loaded[name].dtype.kind == variable.dtype.kind or name == "policy"  # text comes back as objects
    assert all(isinstance(variable.data, np.ndarray) for variable in loaded.data_vars.values())


def test_a_file_says_where_it_comes_from(saved: Path):
    attributes = results.load(saved).attrs
    assert json.loads(attributes["qba_parameters"]) == PARAMETERS
    assert json.loads(attributes["qba_sources"]) == {"trace.csv": "ab12"}
    assert attributes["qba_code"] == results.code_hash()
    versions = json.loads(attributes["qba_versions"])
    assert versions["numpy"] == np.__version__ and versions["xarray"] == xr.__version__
    assert {"numba", "h5py", "qba"} <= versions.keys()
    text = saved.read_bytes()
    for private in (os.uname().nodename, str(saved.parent), sys.prefix):
        assert private.encode() not in text


def test_numpy_values_are_parameters_too(tmp_path: Path):
    given = {"rate": np.array([26.0, 28.5]), "seeds": np.int64(3), "trace": Path("a") / "b.csv"}
    path = results.save(make_dataset(), tmp_path / "run.nc", parameters=given)
    stored = json.loads(results.load(path).attrs["qba_parameters"])
    assert stored == {"rate": [26.0, 28.5], "seeds": 3, "trace": "a/b.csv"}


@pytest.mark.parametrize(("value", "told"), [(object(), "object"), (float("nan"), "NaN"), ({1, 2}, "set")])
def test_a_parameter_that_json_cannot_hold_is_refused(tmp_path: Path, value: object, told: str):
    with pytest.raises(InputError, match=told):
        results.save(make_dataset(), tmp_path / "run.nc", parameters={"x": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["units", "long_name"])
@pytest.mark.parametrize("name", ["wait_mean_s", "rate", "policy"])
def test_every_variable_and_coordinate_needs_its_labels(tmp_path: Path, name: str, label: str):
    dataset = make_dataset()
    del dataset[name].attrs[label]
    with pytest.raises(InputError, match=f"'{name}' has {label} None"):
        results.save(dataset, tmp_path / "run.nc", parameters={})
    assert list(tmp_path.iterdir()) == []


# --- the same bytes ---------------------------------------------------------------------------------------------------


def test_written_again_a_file_has_the_same_bytes(saved: Path, tmp_path: Path):
    again = results.save(
        results.load(saved), tmp_path / "sub" / "other.nc", parameters=PARAMETERS, sources={"trace.csv": "ab12"}
    )
    assert again.read_bytes() == saved.read_bytes()


def test_another_process_writes_the_same_bytes(saved: Path, tmp_path: Path):
    """In another directory, with other hash seeds, at another second of the clock."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); time.sleep(1.1)\n"
        "import test_results as t\n"
        "t.results.save(t.make_dataset(), sys.argv[1], parameters=t.PARAMETERS, sources={'trace.csv': 'ab12'})"
    )
    environment = os.environ | {"PYTHONHASHSEED": "3", "PYTHONPATH": str(PACKAGE.parent), "TZ": "Asia/Tokyo"}
    other = tmp_path / "other.nc"
    arguments = [sys.executable, "-c", code, str(other), str(Path(__file__).parent)]
    subprocess.run(arguments, check=True, cwd=tmp_path, env=environment)
    assert _sha256(other) == _sha256(saved)


# --- whole or not at all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved: Path, monkeypatch: pytest.MonkeyPatch, broken: str):
    before = saved.read_bytes()

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, broken, fail)
    with pytest.raises(InputError, match=r"run\.nc: cannot be written \(No space left on device\)"):
        results.save(make_dataset().isel(seed=[0]), saved, parameters={})
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == ["run.nc"]


def test_an_interrupted_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        results.atomic_write(tmp_path / "chart.svg", "<svg/>")
    assert list(tmp_path.iterdir()) == []


def test_text_and_bytes_are_written_as_given(tmp_path: Path):
    assert results.atomic_write(tmp_path / "new" / "λ.json", "λ\r\n").read_bytes() == "λ\r\n".encode()
    assert results.atomic_write(tmp_path / "chart.png", b"\x89PNG").read_bytes() == b"\x89PNG"


def test_a_new_file_may_be_read_as_any_other(tmp_path: Path):
    (tmp_path / "plain").touch()
    written = results.atomic_write(tmp_path / "written", "x")
    assert written.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_directory_is_no_file_name(tmp_path: Path):
    with pytest.raises(InputError, match="is a directory; a file name is needed"):
        results.save(make_dataset(), tmp_path, parameters={})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"run\.nc: cannot be written"):
        results.save(make_dataset(), tmp_path / "file" / "run.nc", parameters={})


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_an_unwritable_folder_is_refused(tmp_path: Path):
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\)"):
        results.save(make_dataset(), tmp_path / "run.nc", parameters={})


def test_a_folder_that_forbids_writing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def forbid(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(results, "open", forbid, raising=False)
    with pytest.raises(InputError, match=r"run\.nc: cannot be written \(Permission denied\)"):
        results.save(make_dataset(), tmp_path / "run.nc", parameters={})


# --- damaged files ----------------------------------------------------------------------------------------------------


def _one_line(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        results.load(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path):
    assert _one_line(tmp_path / "load_sweep.nc") == "no such file; make reproduce writes the results"


def test_a_directory_is_not_read(tmp_path: Path):
    assert _one_line(tmp_path) == "is a directory; a netCDF file is needed"


def test_an_empty_file_is_told(tmp_path: Path):
    (tmp_path / "empty.nc").touch()
    assert _one_line(tmp_path / "empty.nc") == "is empty; a netCDF file is needed"


@pytest.mark.parametrize("content", [b"policy,rate\nFCFS,32\n", b"CDF\x01" + bytes(200), b"\x89HDF"])
def test_another_kind_of_file_is_told(tmp_path: Path, content: bytes):
    path = tmp_path / "other.nc"
    path.write_bytes(content)
    assert _one_line(path) == "is not a netCDF-4 file"


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_a_truncated_file_is_told(saved: Path, share: float):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    assert _one_line(saved) == "is cut short; write it anew with make reproduce"


def test_a_damaged_file_is_refused(saved: Path):
    content = bytearray(saved.read_bytes())
    content[48:600] = bytes(552)
    saved.write_bytes(content)
    assert _one_line(saved).startswith("is damaged, or not a netCDF-4 file (")


# --- the code that made them ------------------------------------------------------------------------------------------


@pytest.fixture
def copied_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's sources elsewhere, so that a test may change them."""
    copy = tmp_path / "qba"
    for file in PACKAGE.rglob("*.py"):
        target = copy / file.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    monkeypatch.setattr(results, "PACKAGE", copy)
    return copy


def test_the_hash_covers_engine_workload_and_policies():
    covered = {file.relative_to(PACKAGE).as_posix() for file in results.number_modules()}
    assert {
        "engine/loop.py", "engine/simulate.py", "policies.py", "workload.py", "requests.py", "predictor.py",
        "config.py", "metrics.py", "theory.py", "sweeps.py",
    } <= covered  # fmt: skip
    shown = {"figures", "cli", "advice", "claims", "notebooks", "profiles", "reproduce", "results", "paths"}
    assert not shown & {name.partition("/")[0].removesuffix(".py") for name in covered}


def test_a_changed_line_makes_a_file_stale(saved: Path, copied_package: Path):
    assert results.stale(saved) is None
    loop = copied_package / "engine" / "loop.py"
    loop.write_text(loop.read_text() + "\nx = 1\n")
    assert "made by code" in results.stale(saved)


def test_a_renamed_module_changes_the_hash(copied_package: Path):
    before = results.code_hash()
    (copied_package / "policies.py").rename(copied_package / "policy.py")
    assert results.code_hash() != before


def test_line_ends_and_charts_do_not_change_the_hash(copied_package: Path):
    before = results.code_hash()
    for file in copied_package.rglob("*.py"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    (copied_package / "figures.py").write_text("changed = True\n")
    assert results.code_hash() == before


def test_a_file_without_a_code_hash_is_stale(tmp_path: Path):
    make_dataset().to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    assert "no qba_code attribute" in results.stale(tmp_path / "other.nc")


def test_published_results_were_made_by_this_code():
    # Those that take long to make are held to numbers computed anew (test_calibrate.py, test_robustness.py).
    beyond = {file for study in STUDIES.values() if study.beyond for file in study.promises}
    published = sorted(path for path in (repository() / "results").glob("*.nc") if path.name not in beyond)
    assert published, "results/ holds no dataset"
    assert [reason for path in published if (reason := results.stale(path))] == []


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
