"""Engine profiles: the three parameters of the batch-time law, where they come from, and the ones that come along."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from qba.errors import InputError
from qba.validate import named_parameters, number

if TYPE_CHECKING:
    import xarray as xr

Ends = tuple[float, float]
"""Low and high end of a 95 % interval."""


@named_parameters
@dataclass(frozen=True, kw_only=True)
class Profile:
    """How long a batch of b tokens takes on an engine: T = c0 + a max(0, b - b0) (paper, section II-A).

    Parameters
    ----------
    name : str
    batch_overhead_s : float
        c0 > 0, seconds that any batch takes.
    token_time_s : float
        a >= 0, seconds for each token beyond the knee.
    knee_tokens : float
        b0 >= 0, tokens that fit into the overhead.
    provenance : str
        Where the numbers come from and how well the law holds there.
    batch_overhead_ends_s, token_time_ends_s, knee_ends_tokens : (float, float), optional
        95 % intervals of the three, where they were fitted.

    Raises
    ------
    InputError
        If a parameter is outside its range; the message names it.
    """

    name: str
    batch_overhead_s: float
    token_time_s: float
    knee_tokens: float
    provenance: str = ""
    batch_overhead_ends_s: Ends | None = None
    token_time_ends_s: Ends | None = None
    knee_ends_tokens: Ends | None = None

    def __post_init__(self) -> None:
        ranges = {"batch_overhead_s": {"above": 0}, "token_time_s": {"at_least": 0}, "knee_tokens": {"at_least": 0}}
        for name, bounds in ranges.items():
            object.__setattr__(self, name, number("Profile", name, getattr(self, name), **bounds))

    @classmethod
    def from_fit(cls, fit: xr.Dataset, *, provenance: str = "", digits: int | None = None) -> Profile:
        """The parameters that `qba.fit_profile` found, with their intervals.

        digits: significant digits to round to; default: none are rounded.
        """
        names = ("batch_overhead_s", "token_time_s", "knee_tokens")
        found = []
        for name in names:
            if name not in fit:
                raise InputError(f"Profile.from_fit: the dataset has no {name}, but qba.fit_profile's result is needed")
            numbers = [float(value) for value in fit[name].values]
            found.append([float(f"{value:.{digits}g}") for value in numbers] if digits else numbers)
        values = dict(zip(names, (triple[0] for triple in found)))
        ends = dict(zip(_ENDS, (tuple(triple[1:]) for triple in found)))
        return cls(name=fit.attrs.get("name", "measured"), provenance=provenance, **values, **ends)

    @property
    def engine_fields(self) -> dict[str, float]:
        """The parameters by their names in `qba.EngineConfig`."""
        return {name: getattr(self, name) for name in ("batch_overhead_s", "token_time_s", "knee_tokens")}

    def seconds(self, tokens: ArrayLike) -> np.ndarray:
        """How long batches of these numbers of tokens take (s): an array of the same shape."""
        beyond = np.maximum(0.0, np.asarray(tokens, dtype=float) - self.knee_tokens)
        return self.batch_overhead_s + self.token_time_s * beyond


_ENDS = tuple(field.name for field in fields(Profile))[-3:]


def vidur_provenance(
    *, filename: str, sha256: str, operators: str, layers: int, tensor_parallel: int, batches: int, most_tokens: int,
    outliers: int, errors: str,
) -> str:  # fmt: skip
    """What is said of a profile that `qba.profile_tables.vidur_profile` fitted."""
    return (
        f"Fitted to Vidur's operator table {filename} (SHA-256 {sha256}; MIT, microsoft/vidur): medians of {operators}, "
        f"summed and times {layers} layers, and of emb once; tensor parallel {tensor_parallel}; {batches} batches of up "
        f"to {most_tokens} tokens, outliers: {outliers}. Relative error, median (largest): {errors}. It is largest "
        "where the measured time steps, as the GPU works in tiles. Not in the table, so an engine's own batches take "
        "longer: attention over the KV cache, output layer, sampling, communication, work of the CPU."
    )


_LLAMA_2_7B = {
    "operators": "input_layernorm, attn_pre_proj, attn_rope, attn_post_proj, post_attention_layernorm, mlp_up_proj, "
    "mlp_act, mlp_down_proj, add",
    "layers": 32, "tensor_parallel": 1, "batches": 196, "most_tokens": 2048,
}  # fmt: skip

PRESETS: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="paper", batch_overhead_s=0.003, token_time_s=2e-5, knee_tokens=64,
            provenance="The paper's constants (section IV-A3): profiled, it says, on an engine and a GPU that it does not name.",
        ),
        Profile(
            name="a100-llama-2-7b", batch_overhead_s=0.00937, token_time_s=6.08e-05, knee_tokens=69.5,
            batch_overhead_ends_s=(0.00887, 0.00987), token_time_ends_s=(5.82e-05, 6.34e-05), knee_ends_tokens=(35.9, 103.0),
            provenance=vidur_provenance(
                **_LLAMA_2_7B, filename="vidur_a100_llama-2-7b_mlp.csv", outliers=1,
                sha256="2cfacca979f32e83257753cf6fd815a71af8ba9a7a9d0643b18d9f54e8a37688",
                errors="1-64 tokens 3.1% (4.7%), 65-256 tokens 6.2% (23.8%), 257-1024 tokens 4.0% (21.3%), "
                "1025-2048 tokens 2.7% (7.5%), 2049-4096 tokens 4.1% (8.3%)",
            ),
        ),
        Profile(
            name="h100-llama-2-7b", batch_overhead_s=0.00571, token_time_s=1.84e-05, knee_tokens=57.2,
            batch_overhead_ends_s=(0.00543, 0.00599), token_time_ends_s=(1.75e-05, 1.92e-05), knee_ends_tokens=(19.0, 95.4),
            provenance=vidur_provenance(
                **_LLAMA_2_7B, filename="vidur_h100_llama-2-7b_mlp.csv", outliers=0,
                sha256="b1a2def08857d10e5f66c3b5b2d046b6e8caed5c30b2bc920a0462598e3b2a59",
                errors="1-64 tokens 2.6% (4.3%), 65-256 tokens 5.8% (17.0%), 257-1024 tokens 4.3% (17.3%), "
                "1025-2048 tokens 2.3% (8.3%), 2049-4096 tokens 6.3% (11.2%)",
            ),
        ),
    )
}  # fmt: skip
"""Profiles by name. Those of GPUs are what `qba.profile_tables.vidur_profile` makes of the files that they name."""


def profile_by_name(name: str) -> Profile:
    """The preset of this name.

    Raises InputError for another name, with the nearest one and all there are.
    """
    if name not in PRESETS:
        import difflib  # only a mistake needs it

        near = difflib.get_close_matches(str(name).lower(), PRESETS, n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"unknown profile {name!r}{hint}: there are {', '.join(PRESETS)}")
    return PRESETS[name]


def as_profile(profile: str | Profile | xr.Dataset) -> Profile:
    """A profile from a preset's name, itself, or what `qba.fit_profile` returned.

    Raises InputError for anything else.
    """
    if isinstance(profile, str):
        return profile_by_name(profile)
    if isinstance(profile, Profile):
        return profile
    if hasattr(profile, "data_vars"):  # a dataset; xarray need not be imported to know it
        return Profile.from_fit(profile)
    raise InputError(
        f"profile is {profile!r:.60}, but it must be a preset's name ({', '.join(PRESETS)}), a qba.Profile or the "
        "result of qba.fit_profile"
    )
