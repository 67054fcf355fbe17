"""What the innermost K loop computes besides addresses: a counter and a comparison, in LLVM IR at -O1, loads excluded."""

import pytest

from mlx_tensorops.shaders.render import render
from tests.gemm import filled, k_loop

# Rows whose vectors lie wholly inside the matrix; the others have a second path for a cut vector.
WHOLE = ("nn/aligned", "tn/aligned", "nt/ragged", "nn/ragged_m")
CASES = [(flow, "coordinate", row) for flow in filled.TILES for row in ("nn/aligned", "tt/ragged", "strided/ragged")]
CASES += [(flow, "nax", row) for flow in filled.TILES for row in WHOLE[:: 1 if flow == "direct" else 3]]


def loads_per_step(variant) -> int:
    """Loads of one lane and step: elements of all fragments, four at a time where the lane map is known."""
    t = variant.tile
    elements = (t.warp_m + t.warp_n) * t.op_k // 32
    return elements // 4 if variant.option("fill", "coordinate") == "nax" and variant.layout != "strided" else elements


def integers(found) -> dict:
    """Only the integer operations."""
    return {name: number for name, number in found.items() if name in k_loop.INTEGER}


@pytest.mark.parametrize("dataflow, fill, row", CASES)
def test_two_integer_operations_and_one_address_per_load(dataflow, fill, row):
    variant = filled.variants(dataflow, fill)[row]
    source = render(variant)
    found = k_loop.instructions(source.text, source.kernel)
    fence = int("volatile int fence" in source.text)  # one store and one load of a local
    loads, pointers = loads_per_step(variant), variant.tile.fragments_m + variant.tile.fragments_n
    assert integers(found) == {"add": 1, "icmp": 1}
    assert found["load"] == loads + fence and found["getelementptr"] == loads + pointers, "every address: one base, one hoisted offset"


@pytest.mark.parametrize("dataflow", filled.TILES)
def test_cut_vectors_cost_no_multiplication(dataflow):
    """Where N ends inside a vector of B, the other path takes single elements; its addresses are hoisted as well."""
    variant = filled.variants(dataflow, "nax")["nn/ragged"]
    source = render(variant)
    found = integers(k_loop.instructions(source.text, source.kernel))
    assert set(found) <= {"add", "icmp", "zext", "shl", "or"} and found["add"] == found["icmp"] == 1, "words are put together, nothing else"


NOT_HOISTED = (
    ("base computed per step", "fill(left0, a0, a0_at);", "fill(left0, a + (row0 + step) * a_m, a0_at);"),
    ("K offset multiplied out", "fill(right, b0, b0_at);", "fill(right, b + step * OK * b_k, b0_at);"),
    ("offsets located per step", "fill(left0, a0, a0_at);", "locate<false, false>(left0, a0_at, a_m + step, a_k, OM, OK); fill(left0, a0, a0_at);"),
)


@pytest.mark.parametrize("what, before, after", NOT_HOISTED, ids=[n[0] for n in NOT_HOISTED])
def test_the_count_tells(what, before, after):
    source = render(filled.variants("direct")["nn/aligned"])
    assert before in source.text
    found = k_loop.instructions(source.text.replace(before, after), source.kernel)
    assert integers(found) != {"add": 1, "icmp": 1} or found["getelementptr"] > 48 + 4, what
