"""The cost of building a graph node, against MLX's own matmul."""

import timeit

import mlx.core as mx

from .stub import variants

CALLS, ROUNDS = 100, 200  # batches of 0.1 ms fit between two preemptions on a busy machine
ALLOWED = 5e-6  # seconds over mx.matmul, of which the Python layer needs its share too


def test_building_a_node_costs_no_more_than_the_budget(ext):
    a, b, set_ = mx.zeros((64, 32)), mx.zeros((32, 96)), variants()
    arms = {
        "mx.matmul": lambda: mx.matmul(a, b),
        "launch2": lambda: ext.launch2(set_, a, b, None, None),
        "launch": lambda: ext.launch(set_, [a, b], None, None),
    }
    best = dict.fromkeys(arms, float("inf"))
    for _ in range(ROUNDS):  # interleaved, so that a busy moment meets every arm
        for name, call in arms.items():
            best[name] = min(best[name], timeit.timeit(call, number=CALLS) / CALLS)
    assert best["launch2"] - best["mx.matmul"] < ALLOWED, best
    assert best["launch"] - best["mx.matmul"] < ALLOWED, best
