"""A study of a trace as files: netCDF, CSV and a picture."""

from __future__ import annotations

import hashlib
from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert
import xarray as xr

from qba.figures import to_svg
from qba.intervals import ESTIMATE
from qba.results import atomic_write, save


def write_study(
    folder: str | Path, name: str, study: xr.Dataset, picture: alt.TopLevelMixin, trace: str | Path
) -> list[Path]:
    """Write ``name`` as .nc, .csv, .svg and .png into a folder, each whole or not at all; returns their paths.

    trace: the file that the study is of; the netCDF file names it with its SHA-256.

    Raises
    ------
    InputError
        If the folder cannot be written.
    """
    folder, trace = Path(folder), Path(trace)
    with trace.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    svg = to_svg(picture)
    return [
        save(study, folder / f"{name}.nc", parameters={}, sources={trace.name: digest}),
        atomic_write(folder / f"{name}.csv", flat(study).to_csv(index=False, lineterminator="\n")),
        atomic_write(folder / f"{name}.svg", svg),
        atomic_write(folder / f"{name}.png", vl_convert.svg_to_png(svg, scale=2)),
    ]


def flat(study: xr.Dataset) -> pd.DataFrame:
    """One row for each point of the first dimensions, intervals as columns ``…_low`` and ``…_high``.

    Variables that have other dimensions than the most of them, such as a course in time, are left to the netCDF file.
    """
    columns = {}
    for name, values in study.data_vars.items():
        for end in ESTIMATE if "estimate" in values.dims else ("value",):
            one = values.sel(estimate=end, drop=True) if "estimate" in values.dims else values
            columns[name if end == "value" else f"{name}_{end}"] = one.drop_attrs()
    shapes = [values.dims for values in columns.values()]
    index = max(dict.fromkeys(shapes), key=lambda dims: (shapes.count(dims), len(dims)))
    kept = {name: values for name, values in columns.items() if set(values.dims) <= set(index)}
    table = xr.Dataset(kept)
    return (
        table.to_dataframe(dim_order=list(index)).reset_index()
        if index
        else pd.DataFrame([table.to_array("name").to_series()])
    )
