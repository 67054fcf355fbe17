"""Products of whole quantised matrices: how their arrays are made, and as which views they reach a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from mlx_tensorops import formats
from mlx_tensorops.formats import GLOBAL_SCALE_DIVISOR, codec
from mlx_tensorops.primitives import _weighted_signature as shared
from mlx_tensorops.spec import WeightedSpec
from tests.cases.gemm import make

# First and last scale byte: so that weights stay below 8 or so in magnitude, and half results finite.
_SCALE_BYTES = {"nvfp4": (0x08, 0x3F), "mxfp4": (119, 128), "mxfp8": (110, 119)}


@dataclass(frozen=True)
class Problem:
    """One problem: what is asked, and the arrays by the names of the kernel's inputs."""

    spec: WeightedSpec
    arrays: dict = field(hash=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs in the order in which kernels take them."""
        return shared.names(shared.problem_of(self.spec), self.spec.epilogue)

    @property
    def inputs(self) -> list[mx.array]:
        """The arrays in that order."""
        return [self.arrays[name] for name in self.names]


def packed(format, shape: tuple[int, ...], scale_type: str, rng: np.random.Generator) -> dict:
    """w, scales and biases of random codes, every code alike often; scales of neighbouring groups differ by up to 2^9."""
    codes = rng.integers(0, 2**format.bits, shape, np.uint8)
    if format.codes == "e4m3":
        codes[codes % 128 == 127] = 3  # no NaN
    groups = (*shape[:-1], shape[-1] // format.group)
    found = {"w": mx.array(codec.pack(codes, format.bits))}
    if format.scale == "float":
        scales = rng.choice((-1.0, 1.0), groups) * 2.0 ** rng.integers(-7, 1, groups) * (1 + rng.random(groups)) / 2**format.bits
        found["scales"] = mx.array(scales.astype(np.float32)).astype(getattr(mx, scale_type))
    else:
        first, last = _SCALE_BYTES[format.name]
        found["scales"] = mx.array(rng.integers(first, last + 1, groups, np.uint8))
    if format.biased:
        found["biases"] = mx.array(rng.normal(size=groups).astype(np.float32)).astype(getattr(mx, scale_type))
    return found


def _rows_of_more(x: mx.array) -> mx.array:
    """The same values as rows of an array that has more columns."""
    wide = mx.concatenate([x, mx.zeros((*x.shape[:-1], 3), x.dtype)], axis=-1)
    mx.eval(wide)
    return wide[..., : x.shape[-1]]


def problem(spec: WeightedSpec, m: int, n: int, k: int, seed: int, *, x_view: str = "rows", rows_of_more: bool = False, shared_weights: bool = False,
            batch: int = 2) -> Problem:
    """Random arrays of a whole-matrix spec.

    Args:
        x_view: a view of ``tests.cases.gemm``.
        rows_of_more: the stored arrays are rows of larger ones.
        shared_weights: a batch has one matrix, repeated with stride 0.
    """
    rng = np.random.default_rng(seed)
    fmt, lead = formats.by_name(spec.weights.format), (batch,) if spec.batched else ()
    stored_lead = () if shared_weights else lead
    stored = packed(fmt, (*stored_lead, *((n, k) if spec.weights.transpose else (k, n))), spec.weights.scales, rng)
    if rows_of_more:
        stored = {name: _rows_of_more(x) for name, x in stored.items()}
    if lead and shared_weights:
        stored = {name: mx.broadcast_to(x[None], (*lead, *x.shape)) for name, x in stored.items()}
    arrays = {"x": make(x_view, m, k, spec.x, rng, lead=lead), **stored}
    if spec.weights.global_scale:
        factor = rng.uniform(0.5, 2.0)
        arrays["global_scale"] = mx.array([factor * (GLOBAL_SCALE_DIVISOR if spec.weights.global_scale == "amax" else 1.0)], mx.float32)
    for name, kind in zip(spec.epilogue.operands, spec.extras):
        arrays[name] = make("rows", 1 if name == "bias" else m, n, kind, rng, lead=(1,) * len(lead) if name == "bias" else lead)
    mx.eval(*arrays.values())
    return Problem(spec, arrays)
