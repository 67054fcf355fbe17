"""The C++ rules agree with Python's, on shapes, on layouts, and in what they refuse."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tensorops import rules
from mlx_tensorops.primitives import _native

INT64 = range(-(2**63), 2**63)
SHAPES = ((3, 0, 7), (5, 128), ())


def arrays():
    return [mx.zeros(shape) for shape in SHAPES]


def leaves():
    facts = [rules.dim(i, axis) for i, shape in enumerate(SHAPES) for axis in range(-len(shape), len(shape))]
    facts += [rules.ndim(i) for i in range(len(SHAPES))]
    constants = st.integers(-200, 200) | st.sampled_from([2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)])
    return st.sampled_from(facts) | constants.map(rules.rule)


def grow(children):
    def node(name):
        count = rules.OPERATORS[name][0]
        return st.tuples(*[children] * count).map(lambda operands: rules._apply(name, *operands))
    return st.sampled_from(sorted(rules.OPERATORS)).flatmap(node)


def test_vocabulary_is_pythons(ext):
    assert ext.rule_vocabulary() == list(rules.OPERATORS)


def exact(rule):
    """Python's value, or the error type that C++ must raise: every intermediate value must fit 64 bits."""
    stack = []
    for token in rule.tokens:
        if token in rules.OPERATORS:
            count, meaning = rules.OPERATORS[token]
            operands = stack[-count:]
            del stack[-count:]
            if token in ("//", "%", "ceildiv") and operands[1] == 0:
                return ValueError
            stack.append(meaning(*operands))
        else:
            stack.append(rules.Rule((token,))(SHAPES))
        if stack[-1] not in INT64:
            return OverflowError
    return stack[-1]


@settings(max_examples=400, deadline=None)
@given(st.recursive(leaves(), grow, max_leaves=12))
def test_same_value_or_same_refusal_as_python(rule):
    expected = exact(rule)
    evaluate = _native.ext().evaluate
    if isinstance(expected, type):
        with pytest.raises(expected, match="overflows 64 bits|divides by zero"):
            evaluate(rule.program(), arrays())
    else:
        assert evaluate(rule.program(), arrays()) == expected


@pytest.mark.parametrize("program, value", [
    ("-7 2 //", -4), ("-7 2 %", 1), ("7 -2 %", -1), ("-7 2 ceildiv", -3), ("7 2 ceildiv", 4), ("-8 2 ceildiv", -4),
    ("-9223372036854775808 -1 %", 0), ("0 5 7 select", 7), ("2 5 7 select", 5), ("3 not", 0), ("2 4 and", 1)])
def test_signs_round_as_in_python(ext, program, value):
    assert ext.evaluate(program, []) == value


@pytest.mark.parametrize("program", [
    "9223372036854775807 1 +", "-9223372036854775808 1 -", "4294967296 4294967296 *",
    "-9223372036854775808 -1 //", "-9223372036854775808 -1 ceildiv"])
def test_overflow_is_an_error_that_names_the_program(ext, program):
    with pytest.raises(OverflowError, match="overflows 64 bits") as error:
        ext.evaluate(program, [])
    assert program in str(error.value)


@pytest.mark.parametrize("operator", ["//", "%", "ceildiv"])
def test_division_by_zero_names_the_program(ext, operator):
    with pytest.raises(ValueError, match="divides by zero"):
        ext.evaluate(f"1 0 {operator}", [])


@pytest.mark.parametrize("program, why", [
    ("", "no such token"), ("1  2 +", "no such token"), ("1 2", "leaves 2 values"), ("+", "lacks operands"),
    ("1 +", "lacks operands"), ("1 2 select", "lacks operands"), ("x0.1", "no such token"), ("d0", "no such token"),
    ("n0.1", "no such token"), ("d.1", "no such token"), ("d-1.0", "no such token"), ("d0.", "no such token"),
    ("p", "no such token"), ("99999999999999999999", "no such token"), ("1.5", "no such token"),
    (" ".join(["1"] * 65 + ["+"] * 64), "deeper than 64")])
def test_malformed_programs_are_refused(ext, program, why):
    with pytest.raises(ValueError, match=why):
        ext.evaluate(program, [])


def test_a_stack_of_the_full_depth_works(ext):
    assert ext.evaluate(" ".join(["1"] * 64 + ["+"] * 63), []) == 64


@pytest.mark.parametrize("program, why", [
    ("d1.0", "input 1 does not exist"), ("d0.2", "has no axis 2, it has 2 dimensions"),
    ("d0.-3", "has no axis -3"), ("s0.5", "has no axis 5")])
def test_facts_that_do_not_exist(ext, program, why):
    with pytest.raises(ValueError, match=why):
        ext.evaluate(program, [mx.zeros((2, 3))])


def test_layout_facts_are_those_of_the_evaluated_view(ext):
    base = mx.arange(6 * 8, dtype=mx.float32).reshape(6, 8)
    mx.eval(base)
    origin = ext.evaluate("p0", [base])
    for view, strides, first in [
        (base.T, (1, 8), 0), (base[1:, 2:], (8, 1), 10), (base[::-1], (-8, 1), 40), (base[:, ::2], (8, 2), 0),
        (mx.broadcast_to(base[2:3], (6, 8)), (0, 1), 16)]:
        assert tuple(ext.evaluate(f"s0.{axis}", [view]) for axis in (0, 1)) == strides
        assert ext.evaluate("p0", [view]) - origin == 4 * first


def test_shape_rules_do_not_evaluate(ext):
    """An array that cannot be evaluated is fine until its layout is asked for."""
    lazy = ext.launch2(broken(ext), mx.zeros((2, 3)), mx.zeros((3, 4)), None, mx.cpu)
    assert ext.evaluate("d0.0 d0.1 * n0 +", [lazy]) == 10
    with pytest.raises(RuntimeError, match="placed on a CPU stream"):
        ext.evaluate("s0.0", [lazy])


def broken(ext):
    from .stub import variants
    return variants()
