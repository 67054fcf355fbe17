"""explain refuses what the call refuses, with its very words: also what only one operation asks, and when the call is warm."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt

X, W = mx.ones((2, 1, 1, 8)), mx.ones((3, 8, 8))
IDS = mx.zeros((2, 1), mx.int32)
A, C = mx.ones((2, 8)), mx.ones((2, 8))
BEYOND = np.full((2, 1), 2**63 + 5, np.uint64)
GOOD = {
    "addmm": ((C, A, W[0]), {}),
    "gather_mm": ((X, W, None, IDS), {}),
    "gather_gateup": ((X, W, W, None, IDS), {}),
    "switch_glu": ((A, W, W, W, IDS, mx.ones((2, 1))), {}),
    "tile_plan": ((IDS,), {"num_experts": 3}),
}
BAD = [
    ("addmm", {0: None}), ("addmm", {0: [1.0]}), ("addmm", {3: "1"}), ("addmm", {3: mx.array(1.0)}), ("addmm", {4: None}), ("addmm", {4: np.ones(2)}),
    ("addmm", {4: 10**400}), ("addmm", {0: mx.ones(3), 4: 0}), ("addmm", {3: 0.5, "engine": "cpu"}),
    ("gather_mm", {"sorted_indices": "yes"}), ("gather_mm", {"sorted_indices": mx.ones(2)}), ("gather_mm", {"sorted_indices": 1}),
    ("gather_gateup", {"sorted_indices": 0}),
    ("gather_mm", {"plan": "p"}), ("gather_mm", {"stream": 0}), ("switch_glu", {"stream": 1}), ("gather_mm", {3: [[0, 1], [1]]}),
    ("switch_glu", {4: BEYOND}), ("switch_glu", {4: [[0], [0, 1]]}), ("switch_glu", {3: W[:2]}), ("switch_glu", {3: mx.ones((4, 8, 8))}),
    ("switch_glu", {"shared": (W[0], W[0], W[0][:4])}), ("switch_glu", {"shared": (W[0], W[0], W[0][:1])}),
    ("switch_glu", {"shared": (W[0], W[0][:4], W[0])}), ("switch_glu", {"shared": (W[0], W[0], W[0][:, :4])}),
    ("switch_glu", {"shared": (W[0], (W[0], W[0]), W[0])}), ("switch_glu", {"shared": (W[0].astype(mx.complex64), W[0], W[0])}),
    ("tile_plan", {0: BEYOND}), ("tile_plan", {0: -1}), ("tile_plan", {0: [[0, 1], [1]]}), ("tile_plan", {0: None, "offsets": [1, 2, 3, 4]}), ("tile_plan", {0: None, "offsets": [0, 2, 1, 4]}),
]  # fmt: skip


@pytest.mark.parametrize("op, changes", BAD, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
def test_in_the_same_words(op, changes):
    (arrays, options), call = GOOD[op], getattr(mt, op)
    for _ in range(3):
        call(*arrays, **options)
    arrays = [*arrays, *[1.0] * (5 - len(arrays))] if op == "addmm" else list(arrays)
    options = {**options, **{name: value for name, value in changes.items() if isinstance(name, str)}}
    for place in changes.keys() - options.keys():
        arrays[place] = changes[place]
    with pytest.raises(mt.TensorOpsError) as of_call:
        call(*arrays, **options)
    with pytest.raises(mt.TensorOpsError) as of_explain:
        mt.explain(op, *arrays, **options)
    assert (of_explain.type, str(of_explain.value)) == (of_call.type, str(of_call.value))
