"""Several weight tensors against the same rows: what the generated guard checks, and where. One test per rule, and kernels with three."""

import re

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import guards, signature
from mlx_tensorops.errors import RuleError, ShapeError, TensorOpsError
from mlx_tensorops.policies import gateup, gather, qgemm
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.shaders import lint
from mlx_tensorops.shaders.render import render
from mlx_tensorops.spec import WeightedSpec, WeightSpec
from tests.weighted import experts, flows, shapes

NVFP4 = WeightSpec("nvfp4", "uint32", "uint8")
NARROW = (("block_k", 16),)


def spec_of(destinations: int, gate: str = "", x: str = "bfloat16", block_m: int = 16) -> WeightedSpec:
    return WeightedSpec(x, x, NVFP4, rows="plan", destinations=destinations, gate=gate, block_m=block_m, op="gather_gateup")


def narrow(destinations: int):
    """The row of Butter's block for any sizes."""
    return flows.variant_set("mpp", "staged", qgemm.NARROW, spec_of(destinations), NARROW)["nt/ragged"]


def test_how_many_there_may_be():
    """In the spec, before a kernel is described."""
    with pytest.raises(TensorOpsError, match=r"\[gather_gateup\] 0 destinations\.\n  nearest legal: 1"):
        spec_of(0)
    with pytest.raises(TensorOpsError, match="gate 'swiglu' of 3 destinations"):
        spec_of(3, "swiglu")


@pytest.mark.parametrize("destinations", [1, 2, 3])
def test_every_destination_has_a_name_an_output_and_a_store_of_its_own(destinations):
    """In the signature: names are distinct, and each result has its rule. In the text: each is stored once, by coordinates."""
    v = narrow(destinations)
    sign, text = signature.of(v), render(v).text
    outputs = [b.name for b in sign.buffers if b.output]
    assert len(set(outputs)) == len(outputs) == len(sign.outputs) == destinations
    stored = re.findall(r"store_block\(scratch, (\w+),", text)
    assert stored == outputs and text.count("put(c") == destinations
    assert "scratch[int(index[1]) * SCRATCH_LD + int(index[0])] = ct[i]" in text  # no lane layout, no transposed extents


@pytest.mark.parametrize("destinations", [1, 2, 3])
def test_every_destination_is_initialised_before_it_is_used(destinations):
    """By lint, on the text."""
    v = narrow(destinations)
    text = render(v).text
    assert lint.lint_text(v, text) == []
    for name in re.findall(r"zero\((c\w+)\);", text):
        wrong = text.replace(f"zero({name});", "", 1)
        assert lint.lint_text(v, wrong) == [f"destination {name} is used before it is zeroed"]
        late = wrong.replace("  Epilogue finish", f"  zero({name});\n  Epilogue finish", 1)
        assert lint.lint_text(v, late) == [f"destination {name} is used before it is zeroed"]


def test_scratch_and_registers_of_all_are_counted():
    """By the dataflow's legality, before a kernel is described; by the signature and the emulator's count, after."""
    shared, wide = qgemm.SHARED, (("block_k", 64),)
    one = flows.variant_set("mpp", "staged", shared, spec_of(1, block_m=64), wide)["nt/ragged"]
    two = flows.variant_set("mpp", "staged", shared, spec_of(2, "swiglu", block_m=64), wide)["nt/ragged"]
    staged_w = shared.n * (64 + 4) * 2
    assert signature.of(two).threadgroup_bytes - signature.of(one).threadgroup_bytes == staged_w
    assert _weighted.cost(two).accumulator_words == 2 * _weighted.cost(one).accumulator_words
    with pytest.raises(RuleError, match="35328 bytes of threadgroup memory; 28672 are free: stage a smaller part of K"):
        flows.variant_set("mpp", "staged", shared, spec_of(3, block_m=64), wide)
    with pytest.raises(RuleError, match=r"128 words per lane \(64 of C, 64 of A and B\) where 96 fit"):
        flows.variant_set("mpp", "staged", qgemm.HALF, spec_of(2, x="float32", block_m=32))
    given = experts.problem(spec_of(2, "swiglu", block_m=64), experts.ids_of(40, 1), 72, 96, 1)
    variants = flows.variant_set("mpp", "staged", gather.TALL, spec_of(2, "swiglu", block_m=64), (*wide, ("tail", 4)))
    _, dispatch = flows.run(variants, given[0].inputs, checked=True)
    assert dispatch["counters"]["threadgroup_bytes"] == signature.of(variants[dispatch["row"]]).threadgroup_bytes


def test_shapes_of_all_agree():
    """By the guard on shapes, which every row of a set shares."""
    v = narrow(2)
    sign, given = signature.of(v), shapes.of(v)
    names = [b.name for b in sign.buffers if not b.output]
    check = guards.compiled("gather_gateup", names, sign.checks)
    check(*given)
    for name, message in (("w_up", "both weight tensors must have one shape"), ("scales_up", "scales_up must hold one value for each group of 16 weights")):
        wrong = [(*s[:-1], s[-1] * 2) if n == name else s for n, s in zip(names, given)]
        with pytest.raises(TensorOpsError, match=message):
            check(*wrong)
    x, w = mx.zeros((4, 64), mx.bfloat16), mx.zeros((3, 32, 64), mx.bfloat16)
    with pytest.raises(ShapeError, match=r"\[gather_gateup\] gate has shape \(3, 32, 64\) and up \(3, 16, 64\)"):
        mt.gather_gateup(x[:, None], w, w[:, :16], None, np.zeros(4, int))


def test_three_weight_tensors_meet_one_load_of_x():
    spec = spec_of(3)
    given = experts.problem(spec, experts.ids_of(60, 3, bad=True), 72, 96, 3)
    variants = flows.variant_set("mpp", "staged", qgemm.NARROW, spec, NARROW)
    for layout in ("nax", "permuted"):
        results, dispatch = flows.run(variants, given[0].inputs, checked=True, layout=layout)
        assert len(results) == 3 and experts.over_bound(*given, results) <= 1
    there = (given[1] >= 0) & (given[1] < experts.EXPERTS)
    assert dispatch["counters"]["device_load"][0] == there.sum() * 96 * 2 * -(-72 // 32)


def test_policy_has_a_kernel_for_two_of_every_type_and_height():
    for x in ("float16", "bfloat16", "float32"):
        for block_m in (1, 4, 16, 32, 64, 128):
            for engine in ("mpp", "simdgroup"):
                spec = spec_of(2, "swiglu", x, block_m)
                found = _weighted.rows(spec, engine, gateup.choose(spec, engine))
                assert {v.tile.m for v in found} == {block_m}
