"""Where ``auto`` takes the native CPU engine for stored weights and experts on a CPU stream. Retunable; legality is elsewhere."""

from __future__ import annotations

from .cpu_gemm import Entry

# Figures: interleaved pairs of mx.quantized_matmul and this engine, best of 3 to 300 calls with evaluation, f32 and bf16, affine 4, nvfp4
# and mxfp8, 1 to 64 rows; AVX2 machine with two cores, mlx 0.32.4. One row against 32x64 weights takes 15-27 us either way.
TABLE = {
    "Linux": Entry(True, "the native engine: level with MLX at 32x64 weights, 1.2x to 18x ahead at 256x256, 35x and more from 64 rows of 1024x1024"),
    "Darwin": Entry(False, "the native engine is unmeasured on macOS"),
}


def choose(system: str) -> Entry:
    """The entry of a system, as ``platform.system()`` names it; a system without measurements keeps MLX."""
    return TABLE.get(system, Entry(False, f"the native engine is unmeasured on {system}"))
