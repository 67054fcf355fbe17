"""Defects that the check must notice, each for its own reason: they prove that it can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent / "controls"


@dataclass(frozen=True)
class Control:
    """A source added to the extension, or another nanobind, and the texts that must appear in its failure."""

    name: str
    reasons: tuple[str, ...]
    source: Path | None = None
    nanobind: str | None = None


CONTROLS = (
    Control("a function that libmlx hides",
            (r"missing 1 of \d+ symbols: __ZN3mlx4core14get_block_dimsEiiii",
             r"ld64\.lld\S*: error: undefined symbol: __ZN3mlx4core14get_block_dimsEiiii"),
            HERE / "hidden_function.cpp"),
    Control("a query that libmlx hides",
            (r"missing 1 of \d+ symbols: __ZN3mlx4core5metal16is_nax_availableEv",
             r"ld64\.lld\S*: error: undefined symbol: __ZN3mlx4core5metal16is_nax_availableEv"),
            HERE / "hidden_query.cpp"),
    Control("set_data of older MLX", (r"no matching member function for call to 'set_data'",), HERE / "old_set_data.cpp"),
    Control("get_command_encoder of older MLX",
            (r"no member named 'get_command_encoder' in 'mlx::core::metal::Device'",), HERE / "old_encoder.cpp"),
    Control("a nanobind with another ABI", (r"nanobind tag v21_\S+ is not the nanobind_\S+_v22 of mlx\.core",),
            nanobind="2.15.0"),
)
