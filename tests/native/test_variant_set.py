"""What a VariantSet refuses to be, which row it picks, and what would be launched."""

import itertools

import mlx.core as mx
import pytest

from mlx_tensorops import rules

from .stub import CHECKS, row, text, variants

A, B = (6, 8), (8, 10)


def pair():
    return mx.zeros(A), mx.zeros(B)


@pytest.mark.parametrize("change, why", [
    (dict(outputs=[("float32", ["s0.0"])]), "output shape 's0.0' reads strides or addresses"),
    (dict(checks=[(rules.stride(0, 0), "x")]), "check 's0.0' reads strides"),
    (dict(checks=[(rules.dim(2, 0), "x")]), "check 'd2.0' reads an input beyond the 2"),
    (dict(outputs=[("float99", ["1"])]), "dtype 'float99'"),
    (dict(outputs=[("float64", ["1"])]), "dtype 'float64' is not one that a Metal kernel can write"),
    (dict(inputs=0), "at least one input"),
])
def test_contradictions_of_the_set(change, why):
    with pytest.raises(ValueError, match=why):
        variants(**change)


def outputs_bound(times):
    return [("input", 0), *[("output", 0)] * times]


@pytest.mark.parametrize("change, why", [
    (dict(when=rules.dim(5, 0)), r"row 'any': condition 'd5.0' reads an input beyond"),
    (dict(grid=("1 +", "1", "1")), "lacks operands"),
    (dict(bindings=[("input", 2), ("output", 0)]), "input 2 does not exist"),
    (dict(bindings=[("output", 1)]), "output 1 does not exist"),
    (dict(bindings=outputs_bound(0)), "output 0 is bound 0 times"),
    (dict(bindings=outputs_bound(2)), "output 0 is bound 2 times"),
    (dict(bindings=[("output", 0), ("scalars", "ii", ["1"])]), "one format letter per rule"),
    (dict(bindings=[("output", 0), ("scalars", "f", ["1"])]), "field 'f' is neither"),
    (dict(bindings=[("output", 0), ("scalars", "i" * 1025, ["1"] * 1025)]), "do not fit setBytes"),
    (dict(bindings=[("output", 0)] + [("input", 0)] * 31), "32 buffers, Metal has 31"),
    (dict(threads=(0, 1, 1)), "threads per threadgroup must be 1 .. 1024"),
    (dict(threads=(1025, 1, 1)), "threads per threadgroup must be 1 .. 1024"),
    (dict(threads=(769546, 494770, 48448661)), "threads per threadgroup must be 1 .. 1024"),  # 2**64 + 4 in all
    (dict(threadgroup_args=[100]), "100 bytes is not a multiple of 16"),
    (dict(threadgroup_args=[16] * 32), "32 threadgroup arguments, Metal has 31"),
    (dict(threadgroup_args=[16384, 16400]), "32784 threadgroup bytes, the limit is 32768"),
])
def test_contradictions_of_a_row(change, why):
    with pytest.raises(ValueError, match=why):
        variants(row(**change))


@pytest.mark.parametrize("change, why", [
    (dict(threads=(128, 1)), "row: 'threads' is missing or of the wrong type"),
    (dict(threads=(-1, 1, 1)), "row: 'threads' is missing or of the wrong type"),
    (dict(grid=(1, 1, 1)), "row: 'grid' is missing or of the wrong type"),
    (dict(source=b"bytes"), "row: 'source' is missing or of the wrong type"),
    (dict(bindings=["input"]), "row: 'bindings' is missing or of the wrong type"),
    (dict(bindings=[("input",)]), r"binding \('input',\) is not \('input', i\), \('optional', i\)"),
    (dict(bindings=[()]), r"binding \(\) is not"),
    (dict(bindings=[("scalars", "i")]), r"binding \('scalars', 'i'\) is not"),
    (dict(bindings=[("constant", 0)]), r"binding \('constant', 0\) is not"),
])
def test_descriptions_of_the_wrong_form(change, why):
    with pytest.raises(ValueError, match=why):
        variants(row(**change))


def test_a_row_without_a_kernel():
    incomplete = row()
    del incomplete["kernel"]
    with pytest.raises(ValueError, match="row: 'kernel' is missing"):
        variants(incomplete)


def test_attributes_and_identity():
    one, two = variants(row(key="x"), row(key="y")), variants(row(key="x"), row(key="y"))
    assert one.op == "matmul" and one.keys == ["x", "y"]
    assert one != two and len({one, two, one}) == 2
    with pytest.raises(AttributeError):
        one.op = "other"


def layouts():
    return variants(
        row(key="nn", when=rules.eq(rules.stride(0, 1), 1) & rules.eq(rules.stride(1, 1), 1)),
        row(key="nt", when=rules.eq(rules.stride(0, 1), 1) & rules.eq(rules.stride(1, 0), 1)),
        row(key="reversed", when=rules.stride(0, 0) < 0))


def test_the_first_row_that_holds_is_taken(ext):
    a, b = pair()
    bt = mx.zeros((10, 8)).T
    pick = lambda x, y: ext.record(layouts(), [x, y])["row"]
    assert pick(a, b) == "nn"
    assert pick(a, bt) == "nt"
    assert pick(a[::-1], bt) == "nt"  # also "reversed": the order decides
    assert pick(mx.zeros((6, 16))[::-1, ::2], b) == "reversed"
    assert ext.record(variants(row(key="zero", when=0), row(key="two", when=2)), [a, b])["row"] == "two"


def test_no_row_names_the_layouts_and_what_there_is(ext):
    a, b = mx.zeros((8, 6)).T, pair()[1]
    with pytest.raises(ValueError, match=r"\[matmul\] no kernel takes input 0: shape \(6,8\) strides \(1,6\), "
                                         r"input 1: .* there are kernels for: nn, nt, reversed"):
        ext.record(layouts(), [a, b])


def test_checks_run_in_order_at_graph_time(ext):
    with pytest.raises(ValueError, match=r"^\[matmul\] a and b disagree about K$"):
        ext.launch2(variants(), *map(mx.zeros, [(2, 3), (4, 5)]), None, mx.cpu)
    with pytest.raises(ValueError, match=r"^\[matmul\] a and b have two axes$"):
        ext.launch2(variants(), *map(mx.zeros, [(2, 3, 4), (4, 5)]), None, mx.cpu)
    with pytest.raises(ValueError, match="takes 2 inputs and got 3"):
        ext.launch(variants(), [mx.zeros((2, 2))] * 3, None, mx.cpu)


def test_an_output_size_that_no_array_can_have(ext):
    with pytest.raises(ValueError, match=r"output size -6 \(rule '0 d0.0 -'\) is outside"):
        ext.launch2(variants(outputs=[("float32", ["0 d0.0 -"])]), *pair(), None, mx.cpu)
    with pytest.raises(ValueError, match="output size 2147483648"):
        ext.launch2(variants(outputs=[("float32", ["2147483648"])]), *pair(), None, mx.cpu)


@pytest.mark.parametrize("rule, count", [("0", 0), ("0 1 -", -1), ("4294967296", 2**32)])
def test_a_grid_that_no_launch_takes(ext, rule, count):
    with pytest.raises(ValueError, match=rf"row 'any': {count} threadgroups along axis 1"):
        ext.record(variants(row(grid=("1", rule, "1"))), pair())


def test_a_scalar_that_does_not_fit(ext):
    good = [("output", 0), ("scalars", "i", [str(2**31 - 1)])]
    assert ext.record(variants(row(bindings=good)), pair())["scalars"] == {1: [2**31 - 1]}
    bad = [("output", 0), ("scalars", "i", [str(2**31)])]
    with pytest.raises(OverflowError, match=r"rule '2147483648' = 2147483648 does not fit the int32"):
        ext.record(variants(row(bindings=bad)), pair())


def test_scalars_are_laid_out_as_a_c_struct(ext):
    import ctypes
    for letters in itertools.product("iq", repeat=3):
        fields = [(f"f{i}", {"i": ctypes.c_int32, "q": ctypes.c_int64}[c]) for i, c in enumerate(letters)]
        struct = type("S", (ctypes.Structure,), {"_fields_": fields})
        bindings = [("output", 0), ("scalars", "".join(letters), ["-1", "2", "-3"])]
        plan = ext.record(variants(row(bindings=bindings)), pair())
        assert plan["bindings"][1]["bytes"] == ctypes.sizeof(struct)
        assert plan["scalars"] == {1: [-1, 2, -3]}


def spans():
    """(view, bytes it reaches, offset of its first element), worked out from the indices themselves."""
    base = mx.arange(12 * 16, dtype=mx.float32).reshape(12, 16)
    views = [base, base.T, base[3:9, 2:10], base[::-1], base[:, ::-1], base[::-2, ::-3], base[5:6, 7:8],
             mx.broadcast_to(base[4:5], (9, 16)), mx.broadcast_to(base[0:1, 0:1], (9, 16))]
    for view in views:
        positions = [value for line in view.tolist() for value in line]
        yield view, 4 * int(max(positions) - min(positions) + 1), 4 * int(positions[0] - min(positions))


@pytest.mark.parametrize("case", range(9))
def test_a_view_exposes_exactly_the_bytes_it_reaches(ext, case):
    view, size, offset = list(spans())[case]
    other = mx.zeros((view.shape[1], 3))
    plan = ext.record(variants(), [view, other])
    assert plan["bindings"][0] == {"index": 0, "kind": "input", "bytes": size, "offset": offset}
    assert plan["bindings"][2] == {"index": 2, "kind": "output", "bytes": 4 * view.shape[0] * 3, "offset": 0}


def test_a_plan_says_what_would_be_launched(ext):
    plan = ext.record(variants(row(threadgroup_args=[64, 32])), [mx.zeros((130, 8)), mx.zeros((8, 300)).T.T])
    assert plan["kernel"] == "matmul" and plan["row"] == "any" and plan["zeroed"] == 0
    assert plan["grid"] == (3, 3, 1) and plan["threads"] == (128, 1, 1) and plan["threadgroup_args"] == [64, 32]
    assert [b["kind"] for b in plan["bindings"]] == ["input", "input", "output", "scalars"]
    assert plan["scalars"] == {3: [130, 300, 8, 8, 1, 300, 1]}


def test_nothing_is_launched_for_nothing(ext):
    assert ext.record(variants(), [mx.zeros((0, 8)), mx.zeros((8, 3))]) == {"row": None, "zeroed": 0}
    assert ext.record(variants(), [mx.zeros((4, 0)), mx.zeros((0, 3))]) == {"row": None, "zeroed": 1}


def test_one_empty_input_is_enough_for_nothing_to_be_launched(ext):
    """One operand without elements zeroes the outputs, even beside others that have some."""
    plan = ext.record(variants(inputs=3), [mx.zeros((4, 0)), mx.zeros((0, 3)), mx.zeros((3,))])
    assert plan == {"row": None, "zeroed": 1}


def test_an_input_that_no_row_binds_gives_its_shape_only(ext):
    only_b = row(bindings=[("input", 1), ("output", 0), ("scalars", "i", ["d0.1"])], grid=("1", "1", "1"))
    plan = ext.record(variants(only_b), [mx.zeros((4, 0)), mx.zeros((0, 3))])
    assert plan == {"row": None, "zeroed": 1}
    plan = ext.record(variants(only_b, checks=[]), [mx.zeros((4, 0)), mx.zeros((2, 3))])
    assert plan["row"] == "any" and plan["scalars"] == {2: [0]} and plan["bindings"][0]["bytes"] == 24


def test_an_optional_input_without_elements_does_not_stop_the_launch(ext):
    bindings = [("optional", 0), ("input", 1), ("output", 0), ("output", 1)]
    outputs = [("float32", ["d0.1"]), ("float32", ["d1.1"])]
    optional = variants(row(bindings=bindings, grid=("1", "1", "1")), checks=[], outputs=outputs)
    plan = ext.record(optional, [mx.zeros((4, 0)), mx.zeros((2, 3))])
    assert plan["row"] == "any" and plan["zeroed"] == 0
    # Arrays without elements have no memory: a few bytes of constant data stand for them.
    assert [(b["kind"], b["bytes"]) for b in plan["bindings"]] == [("scalars", 16), ("input", 24), ("scalars", 16), ("output", 12)]
    assert ext.record(optional, [mx.zeros((4, 5)), mx.zeros((0, 3))]) == {"row": None, "zeroed": 2}


def test_evaluation_repeats_the_checks(ext):
    with pytest.raises(ValueError, match=r"^\[matmul\] a and b disagree about K$"):
        ext.record(variants(), [mx.zeros((2, 3)), mx.zeros((4, 5))])


def test_bfloat16_and_offsets_in_bytes(ext):
    base = mx.zeros((4, 9), dtype=mx.bfloat16)
    plan = ext.record(variants(checks=CHECKS), [base[:, 1:], mx.zeros((8, 2), dtype=mx.bfloat16)])
    assert plan["bindings"][0]["bytes"] == 2 * (3 * 9 + 8)
    assert text(rules.address(0)) == "p0"
    assert (ext.evaluate("p0", [base[:, 1:]]) - ext.evaluate("p0", [base])) == 2
