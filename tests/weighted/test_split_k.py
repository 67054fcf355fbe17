"""Split-K of quantised products: slices of K in threadgroups of their own, added in order by the dense family's second pass."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import formats, guards, hostmetal, reference
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import qgemm as table
from mlx_tensorops.primitives import _weighted, _weighted_split
from mlx_tensorops.primitives._weighted_signature import facts_of
from mlx_tensorops.shaders.render import render
from mlx_tensorops.signature import of as signature_of
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from mlx_tensorops.variant import VariantSet
from tests.weighted import flows

NVFP4 = formats.by_name("nvfp4")


def problem(m, n, k, seed=3):
    rng = np.random.default_rng(seed)
    w, scales, _ = formats.quantise(rng.normal(size=(n, k)).astype(np.float32), NVFP4)
    x = mx.array(rng.normal(size=(m, k)).astype(np.float32)).astype(mx.bfloat16)
    return x, mx.array(w), mx.array(scales)


def policy_set(epilogue=Epilogue(), extras=(), global_scale=""):
    spec = WeightedSpec("bfloat16", "bfloat16", WeightSpec("nvfp4", "uint32", "uint8", True, global_scale), epilogue=epilogue, extras=extras)
    return VariantSet(spec, "mpp", _weighted.rows(spec, "mpp", table.choose(spec, "mpp")))


def split(variants, arrays, **active):
    mx.eval(*arrays)
    with hostmetal.active(checked=True, **active), mt.trace() as trace:
        (c,) = _weighted_split.launcher(variants)(arrays)
        mx.eval(c)
    return c, trace.dispatches


@pytest.mark.parametrize("layout", ["nax", "permuted"])
def test_two_launches_give_the_product(layout):
    x, w, scales = problem(40, 96, 1056)
    c, dispatches = split(policy_set(), [x, w, scales], layout=layout)
    assert [d["grid"] for d in dispatches] == [(2, 1, 2), (15, 1, 1)]
    error = np.abs(reference.to_float64(c) - reference.qgemm(x, w, scales, None, NVFP4))
    assert np.all(error <= reference.qgemm_bound(x, w, scales, None, NVFP4, "bfloat16"))


def test_the_epilogue_and_the_global_scale_follow_the_sum():
    x, w, scales = problem(33, 64, 1024)
    bias, amax = mx.array(np.linspace(-2, 2, 64, dtype=np.float32))[None], mx.array([1.5 * 2688])
    c, dispatches = split(policy_set(Epilogue(bias=True, activation="relu"), ("float32",), "amax"), [x, w, scales, amax, bias])
    want = np.maximum(1.5 * reference.qgemm(x, w, scales, None, NVFP4) + np.array(bias, np.float64), 0)
    bound = 1.5 * reference.qgemm_bound(x, w, scales, None, NVFP4, "float32") + 2.0**-8 * np.abs(want) + 1e-6
    assert len(dispatches) == 2 and np.all(np.abs(reference.to_float64(c) - want) <= bound) and np.any(want > 0)


def test_one_launch_where_splitting_does_not_pay():
    x, w, scales = problem(40, 96, 512)
    assert len(split(policy_set(), [x, w, scales])[1]) == 1
    f = facts_of(policy_set().rows[0])
    pays = guards.function(table.split_pays(f.M, f.N, f.K), 3)

    def asked(m, n, k):
        return bool(pays((m, k), (n, k // 8), (n, k // 16)))

    assert asked(64, 2048, 4096) and asked(17, 64, 1024)
    assert not asked(16, 64, 8192) and not asked(64, 64, 1008) and not asked(512, 4096, 8192)


def test_work_is_as_predicted_and_a_wrong_slice_is_seen():
    spec = WeightedSpec("bfloat16", "float32", WeightSpec("nvfp4", "uint32", "uint8"))
    variants = flows.variant_set("mpp", "split_k", table.SHARED, spec)
    x, w, scales = problem(64, 64, 1024)
    (partials,), dispatch = flows.run(variants, [x, w, scales], checked=True)
    assert partials.shape == (2, 64, 64)
    v = variants[dispatch["row"]]
    shapes = [x.shape, w.shape, scales.shape]
    strides = [(s[1], 1) for s in shapes]
    cost, counters = _weighted.cost(v), dispatch["counters"]
    assert v.alignment == "aligned"
    for name in ("matmul2d", "macs", "barriers", "threadgroup_load", "threadgroup_store"):
        assert counters[name] == getattr(cost, name)(shapes, strides), name
    assert counters["device_load"][:3] == [rule(shapes, strides) for rule in cost.operand_bytes]
    assert sum(counters["device_store"]) == cost.output_bytes(shapes, strides)
    want = reference.qgemm(x, w, scales, None, NVFP4)
    bound = reference.qgemm_bound(x, w, scales, None, NVFP4, "float32")
    assert np.all(np.abs(np.array(partials, np.float64).sum(axis=0) - want) <= bound)
    wrong = render(v).text.replace("first_k = int(block.z) * p.k_slice", "first_k = 0")
    assert wrong != render(v).text
    kernel = hostmetal.compile(wrong, kernel=render(v).kernel, checked=True)
    params = _params(v, shapes, strides)
    out = np.zeros((2, 64, 64), np.float32)
    result = kernel.dispatch(grid=(1, 1, 2), threadgroup=(v.tile.threads, 1, 1), buffers=[_bits(x), np.array(w), np.array(scales), out, params])
    assert np.any(np.abs(result.outputs[3].astype(np.float64).sum(axis=0) - want) > bound)


def _params(v, shapes, strides) -> bytes:
    import struct

    sign = signature_of(v)
    letters = "".join({"int": "i", "long": "q"}[s.c_type] for s in sign.scalars)
    return struct.pack("@" + letters, *(s.rule(shapes, strides) for s in sign.scalars))


def _bits(x) -> np.ndarray:
    return np.array(x.view(mx.uint16))


def test_what_cannot_be_split_says_why():
    half = WeightedSpec("bfloat16", "bfloat16", WeightSpec("nvfp4", "uint32", "uint8"))
    with pytest.raises(RuleError, match="partial sums are float32, not bfloat16"):
        flows.variant_set("mpp", "split_k", table.SHARED, half)
