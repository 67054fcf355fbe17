"""The rule language: Python's meaning, the compiled guard's, and C++'s agree."""

import random

import mlx.core as mx
import pytest

from mlx_tensorops import guards, rules
from mlx_tensorops.errors import RuleError, ShapeError
from mlx_tensorops.primitives import _native
from mlx_tensorops.rules import OPERATORS, Rule, ceildiv, dim, eq, every, ndim, rule, select, stride
from mlx_tensorops.signature import Check


def test_operators_mean_what_python_means():
    shapes = ((7, 3), (3, 5))
    assert ceildiv(dim(0, -2), 2)(shapes) == 4
    assert ((dim(0, 0) - 10) // 2)(shapes) == -2 and ((dim(0, 0) - 10) % 2)(shapes) == 1
    assert select(dim(0, 0) > 5, 11, 22)(shapes) == 11
    assert every(eq(ndim(0), 2), ~(dim(1, 1) < 5))(shapes) == 1
    assert every()(shapes) == 1


def test_strides_exist_only_when_the_graph_runs():
    with pytest.raises(RuleError, match=r"'s0\.-1' needs strides"):
        stride(0, -1)(((2, 3),))
    assert stride(0, -1)(((2, 3),), ((3, 1),)) == 1
    assert not stride(0, -1).shape_only() and not rules.address(0).shape_only() and dim(0, 0).shape_only()
    assert select(dim(0, 0), 1, 2).shape_only(), "the operator's name begins like a stride"


def test_cpp_knows_the_same_operators():
    assert set(_native.ext().rule_vocabulary()) == set(OPERATORS)


def random_rule(source: random.Random, depth: int, layout: bool) -> Rule:
    if depth == 0:
        leaves = [lambda: rule(source.randint(-9, 9)), lambda: dim(source.randint(0, 1), source.choice([-2, -1, 0, 1])), lambda: ndim(0)]
        if layout:
            leaves.append(lambda: stride(source.randint(0, 1), source.choice([-2, -1, 0, 1])))
        return source.choice(leaves)()
    name = source.choice(list(OPERATORS))
    return rules._apply(name, *(random_rule(source, depth - 1, layout) for _ in range(OPERATORS[name][0])))


@pytest.mark.parametrize("seed", range(4))
def test_three_evaluators_agree_on_random_rules(seed):
    source = random.Random(seed)
    a, b = mx.zeros((5, 3)), mx.zeros((4, 7))
    shapes, strides = (a.shape, b.shape), ((3, 1), (7, 1))
    compared = 0
    for _ in range(400):
        expression = random_rule(source, source.randint(1, 4), layout=True)
        try:
            want = int(expression(shapes, strides))
        except ZeroDivisionError:
            with pytest.raises((ValueError, RuntimeError)):
                _native.ext().evaluate(expression.program(), [a, b])
            continue
        if abs(want) < 2**62:
            assert _native.ext().evaluate(expression.program(), [a, b]) == want, expression.program()
        if expression.shape_only():
            compiled = eval("lambda d0, d1: " + guards._source(expression), {"min": min, "max": max, "len": len})
            assert int(compiled(*shapes)) == want, expression.program()
            compared += 1
    assert compared > 50


def test_a_guard_tells_the_check_that_fails():
    checks = (
        Check(every(eq(ndim(0), 2), eq(ndim(1), 2)), "a and b must have 2 axes", "add an axis"),
        Check(eq(dim(0, -1), dim(1, -2)), "K must agree", "slice one of them"),
    )
    guard = guards.compiled("op", ("a", "b"), checks)
    guard((2, 3), (3, 4))
    with pytest.raises(ShapeError, match=r"\[op\] a has shape \(2, 3\), b has shape \(4, 4\): K must agree\.\n  instead: slice one of them"):
        guard((2, 3), (4, 4))
    with pytest.raises(ShapeError, match="a and b must have 2 axes"):
        guard((), (3, 4))


def test_a_check_may_not_read_strides():
    with pytest.raises(RuleError, match="reads strides"):
        Check(eq(stride(0, -1), 1), "contiguous", "copy")
