"""Where ``auto`` takes the native CPU engine for a product on a CPU stream. Retunable; legality is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """Whether the engine is taken on a system, and the measurement behind it."""

    cpu: bool
    why: str


# Figures: `python -m benchmarks.gemm --policy`, 490 shapes in each of f32, f16 and bf16, AVX2 machine with two cores, mlx 0.32.4
# with the BLAS of PyPI's mlx-cpu; best of 300 interleaved calls, evaluation included. Below 256 multiply-adds a call takes 10 us
# either way and MLX is ahead by 0.2-0.4 us in the median of 117 shapes; a look at the sizes would cost every call as much.
TABLE = {
    "Linux": Entry(True, "the native engine: level with MLX on tiny products, 5x ahead from 2**17 multiply-adds, 12x from 256^3"),
    "Darwin": Entry(False, "the native engine is unmeasured on macOS, where MLX multiplies f32 through Accelerate"),
}


def choose(system: str) -> Entry:
    """The entry of a system, as ``platform.system()`` names it; a system without measurements keeps MLX."""
    return TABLE.get(system, Entry(False, f"the native engine is unmeasured on {system}"))
