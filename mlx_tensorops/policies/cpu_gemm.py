"""Where ``auto`` takes the native CPU engine for a product on a CPU stream. Retunable; legality is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A class of products, the choice, and the measurement behind it."""

    system: str
    work_below: int | None  # batch * m * n * k; None: no limit
    cpu: bool
    why: str


# The first entry that fits decides. Figures: `python -m benchmarks.gemm --policy`, 490 shapes in each of f32, f16 and bf16,
# AVX2 machine with two cores, mlx 0.32.4 with the BLAS of PyPI's mlx-cpu; best of 300 interleaved calls, evaluation included.
TABLE = (
    Entry("Linux", 256, False, "a call takes 10 us either way; MLX is ahead by 0.2-0.4 us in the median of 117 shapes"),
    Entry("Linux", 2048, True, "level: -0.4 to 0.0 us in the median of 127 shapes"),
    Entry("Linux", None, True, "ahead: by 10-33 % below 16,384, 2x below 131,072, 5x below 2^20, 12x and more from 256^3"),
    Entry("Darwin", None, False, "unmeasured; MLX multiplies f32 through Accelerate there, as this engine does"),
)


def prefer_cpu(m: int, n: int, k: int, dtypes: tuple[str, ...] = (), *, batch: int = 1, system: str = "Linux") -> bool:
    """Whether the engine ``cpu`` is not slower than MLX's own CPU product of [m, k] by [k, n].

    Args:
        m, n, k: sizes of one product.
        dtypes: names of the operand types. The classes above hold for each of them, so none decides today.
        batch: number of products of this size.
        system: ``platform.system()``; a system without measurements keeps MLX.
    """
    return choose(m, n, k, dtypes, batch=batch, system=system).cpu


def choose(m: int, n: int, k: int, dtypes: tuple[str, ...] = (), *, batch: int = 1, system: str = "Linux") -> Entry:
    """The entry that decides."""
    work = batch * m * n * k
    for entry in TABLE:
        if entry.system == system and (entry.work_below is None or work < entry.work_below):
            return entry
    return Entry(system, None, False, "unmeasured")
