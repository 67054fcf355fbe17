"""Activations of any magnitude: each row of a result is as good as one rounding, also where hardware flushes half's subnormals. Emulated.

Error and yardstick are norms over a row of the result. One rounding: of the float64 result to the result's type; for f32 that may
lose low bits, of the activations to the 11 bits that are kept.
"""

from functools import lru_cache

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import formats, reference
from mlx_tensorops.formats import codec
from mlx_tensorops.policies import qgemm as table
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from tests.weighted import flows

NVFP4 = formats.by_name("nvfp4")
M, N, K = 64, 96, 1040
SIGMAS = (10.0, 1.0, 0.1, 0.01, 0.003)
FAR_APART = ("in a row", "between rows")  # 2^17 beside 2^-20


@lru_cache(maxsize=None)
def weights():
    """Normal weights, packed."""
    w, scales, _ = formats.quantise(np.random.default_rng(1).normal(size=(N, K)), NVFP4)
    return mx.array(w), mx.array(scales)


@lru_cache(maxsize=None)
def activations(scale, kind: str) -> mx.array:
    """x [M, K] in a type: normal, or signed magnitudes 2^37 apart."""
    rng = np.random.default_rng(2)
    if scale in FAR_APART:
        large = rng.random((M, K)) < 0.5 if scale == "in a row" else np.arange(M)[:, None] % 2 == 0
        x = rng.choice((-1, 1), (M, K)) * (1 + rng.random((M, K))) * np.where(large, 2.0**17, 2.0**-20)
    else:
        x = rng.normal(size=(M, K)) * scale
    return mx.array(x.astype(np.float32)).astype(getattr(mx, kind))


@lru_cache(maxsize=None)
def once(scale, kind: str):
    """(float64 result, norm of each row's error after one rounding)."""
    x = activations(scale, kind)
    want = reference.qgemm(x, *weights(), None, NVFP4)
    if kind != "float32":
        rounded = codec.round_to(want.astype(np.float32), kind).astype(np.float64)
    else:
        fraction, exponent = np.frexp(reference.to_float64(x))
        rounded = reference.qgemm(np.ldexp(np.round(fraction * 2**11) / 2**11, exponent), *weights(), None, NVFP4)
    return want, np.linalg.norm(rounded - want, axis=1)


def measure(scale, kind: str, operands: str, flush_half: bool) -> tuple[float, float]:
    """(largest error of a row in roundings, relative error of the whole result)."""
    spec = WeightedSpec(kind, kind, WeightSpec("nvfp4", "uint32", "uint8"), precision="tf32" if kind == "float32" else "exact")
    variants = flows.variant_set("mpp", "staged", table.SHARED, spec, (("operands", operands), ("store", "direct")))
    (c,), _ = flows.run(variants, [activations(scale, kind), *weights()], flush_half=flush_half)
    want, rounding = once(scale, kind)
    error = np.linalg.norm(reference.to_float64(c) - want, axis=1)
    return float(np.max(error / rounding)), float(np.linalg.norm(error) / np.linalg.norm(want))


KERNELS = (("bfloat16", "native"), ("bfloat16", "half_scaled"), ("float16", "half_scaled"), ("float32", "half_scaled"))


@pytest.mark.parametrize("flush_half", [False, True])
@pytest.mark.parametrize("kind, operands, scale", [(*k, s) for k in KERNELS for s in (*SIGMAS, *(FAR_APART if k[0] != "float16" else ()))])
def test_as_good_as_one_rounding(kind, operands, scale, flush_half):
    assert measure(scale, kind, operands, flush_half)[0] <= 1.5


@pytest.mark.parametrize("scale", SIGMAS)
def test_half_activations_as_they_are(scale):
    """As good as one rounding where subnormals count; small activations lose where they are flushed, which scaling their rows undoes."""
    assert measure(scale, "float16", "native", False)[0] <= 1.5
    flushed = measure(scale, "float16", "native", True)[0]
    assert (flushed <= 1.5) == (scale >= 0.1) and flushed < 20


def test_why_no_policy_takes_the_fixed_fold():
    """Half times 2^-14: right at 1, 2.8% off at 0.01, nothing left of it where subnormals are flushed."""
    assert measure(1.0, "bfloat16", "half_fold", False)[0] <= 1.5
    ratio, error = measure(0.01, "bfloat16", "half_fold", False)
    assert 0.02 < error < 0.04 and ratio > 10
    assert measure(0.003, "bfloat16", "half_fold", False)[1] > 0.05
    assert measure(0.01, "bfloat16", "half_fold", True)[1] > 0.9
    assert measure("between rows", "bfloat16", "half_fold", False)[0] > 100
