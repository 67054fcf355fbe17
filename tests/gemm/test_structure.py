"""What each dataflow's text has and has not: the templates are not one template under several names."""

import re

import mlx.core as mx
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, signature
from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import gemm, gemm_dataflows
from mlx_tensorops.shaders.render import render
from mlx_tensorops.spec import GemmSpec


def variant_of(engine: str, dataflow: str):
    """The general nn row (strided for what has no nn row) of a dataflow's tile for every size."""
    entry = next(e for e in sorted(table.tables(), key=lambda e: e.size != "") if (e.engine, e.dataflow) == (engine, dataflow))
    for out in ("float16", "float32"):
        spec = GemmSpec("float16", "float16", out)
        if not gemm.refusals(spec, entry.engine, entry.dataflow, entry.tile, dict(entry.options)):
            rows = gemm.rows_of(spec, engine, dataflow, entry.tile, options=dict(entry.options))
            return next((v for v in rows if v.row == "nn/ragged"), rows[-1])
    raise AssertionError(dataflow)


def features(variant) -> set[str]:
    """Words for what the kernel does, read off its text without comments."""
    text = re.sub(r"//[^\n]*", "", render(variant).text)
    body = text[text.index("[[kernel"):]
    tests = {
        "cooperative inputs": "get_left_input_cooperative_tensor" in body,
        "tensor views": "tensor_inline" in text,
        "simdgroup matrices": "simdgroup_multiply_accumulate" in text or "simdgroup_matrix" in text,
        "threadgroup memory": bool(re.search(r"\bthreadgroup (?!_)\w+[^;()]*\[", body)),
        "staging barrier": "mem_flags::mem_threadgroup" in text,
        "regrouping barrier": "threadgroup_barrier(mem_flags::mem_none)" in body,
        "one operation for all simdgroups": "execution_simdgroups<" in text,
        "f32 slices": variant.types[-1] == "float32" and gemm_dataflows.of(variant).k_slice is not None,
        "no product": ".run(" not in text and "simdgroup_multiply" not in text,
        "8 simdgroups": variant.tile.simdgroups == 8,
    }
    return {name for name, found in tests.items() if found}


EXPECTED = {
    ("mpp", "direct"): {"cooperative inputs"},
    ("mpp", "direct8"): {"cooperative inputs", "8 simdgroups"},
    ("mpp", "register_direct"): {"cooperative inputs", "8 simdgroups", "regrouping barrier"},
    ("mpp", "tensor"): {"tensor views", "one operation for all simdgroups"},
    ("mpp", "staged"): {"cooperative inputs", "threadgroup memory", "staging barrier"},
    ("mpp", "split_k"): {"cooperative inputs", "f32 slices"},
    ("simdgroup", "registers"): {"simdgroup matrices"},
    ("simdgroup", "staged"): {"simdgroup matrices", "threadgroup memory", "staging barrier"},
    ("simdgroup", "split_k"): {"simdgroup matrices", "f32 slices", "threadgroup memory", "staging barrier"},
    ("simdgroup", "accumulate"): {"no product", "8 simdgroups"},
}


def test_every_dataflow_is_described_and_no_two_are_alike():
    assert set(EXPECTED) == set(gemm_dataflows.dataflows())
    assert len({frozenset(f) for f in EXPECTED.values()}) == len(EXPECTED)


@pytest.mark.parametrize("engine, dataflow", EXPECTED)
def test_features(engine, dataflow):
    variant = variant_of(engine, dataflow)
    assert features(variant) == EXPECTED[engine, dataflow]
    assert (signature.of(variant).threadgroup_bytes > 0) == ("threadgroup memory" in EXPECTED[engine, dataflow])


def test_every_kernel_is_reachable_or_says_why_not():
    reached = {(e.engine, e.dataflow) for e in table.TILES} | {(s.entry.engine, s.entry.dataflow) for s in table.SPLIT_K.values()}
    reached.add((table.ACCUMULATE.engine, table.ACCUMULATE.dataflow))
    waiting = {(e.engine, e.dataflow): e.why for e in table.UNREACHED}
    assert set(gemm_dataflows.dataflows()) == reached | set(waiting)
    assert all(len(why) > 30 for why in waiting.values())


def test_the_first_documents_kernel():
    """M = 128, N = 256, K = 128 in half: the properties TileLang's document lists for its generated source."""
    a, b = mx.zeros((128, 128), mx.float16), mx.zeros((128, 256), mx.float16)
    with device.force("m5"):
        text = mt.dump_source("matmul", a, b, engine="mpp")
        told = mt.explain("matmul", a, b, engine="mpp")
    code = re.sub(r"//[^\n]*", "", text)
    assert told.tile.startswith("bm64_bn128_sg2x2_op16x32x16") and "/aligned" in text
    # A and B are const device half* __restrict, C is device half* __restrict; 128 threads
    for argument in ("const device half* __restrict a", "const device half* __restrict b", "device half* __restrict c"):
        assert argument in code
    assert "max_total_threads_per_threadgroup(128)" in code
    # ids come from execution attributes, not from a thread index
    assert "[[simdgroup_index_in_threadgroup]]" in code and "thread_position_in_threadgroup" not in code and "thread_index_in_threadgroup" not in code
    # one simdgroup per operation; 4 destinations, zeroed before the K loop, f32, accumulated into, stored after it
    assert "matmul2d<descriptor, execution_simdgroup>" in code and re.search(r"matmul2d_descriptor\(\s*16, 32, 16,", code)
    assert "mode::multiply_accumulate" in code
    body = code[code.index("[[kernel"):]
    loop = body.index("for (int step")
    destinations = re.findall(r"auto (c\d\d) = op\.get_destination_cooperative_tensor<Left, Right, float>\(\);", body)
    assert destinations == ["c00", "c01", "c10", "c11"]
    for name in destinations:
        assert body.index(f"zero({name})") < loop < body.index(f"op.run(", loop) < body.index(f"({name}, c,", loop)
    # pointer induction: bases are hoisted, the loop only adds to them
    inner = body[loop:body.index("}", loop)]
    assert re.findall(r"(\w+) \+= ", inner) == ["a0", "a1", "b0", "b1"] and not re.search(r"\bp\.", inner)
    # the half result is a cast of the f32 value in the store; nothing is staged
    assert "typedef half C;" in code and "c[row * c_m + column] = T(finish.apply(ct[i], row, column))" in code
    assert "threadgroup " not in body and "barrier" not in code
