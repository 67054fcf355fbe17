"""Arguments of a kind that nobody expects: a lesson, whatever can be hashed or compared."""

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import device, hostmetal
from mlx_tensorops.errors import EngineError, TensorOpsError

X, W, EXPERTS = mx.ones((3, 64)), mx.quantize(mx.ones((32, 64))), mx.ones((2, 32, 64))
IDS = np.zeros((3, 1), np.int32)
CALLS = {
    "explain": (lambda odd: mt.explain(odd, X, X.T), "no operation is called"),
    "force": (lambda odd: device.force(odd).__enter__(), "no profile is called"),
    "source": (lambda odd: hostmetal.compile(odd), "the source is a"),
    "layout": (lambda odd: hostmetal.active(odd).__enter__(), "is unknown.\n  nearest legal: nax"),
    "group_size": (lambda odd: mt.quantized_matmul(X, *W, group_size=odd), "group_size .* is a"),
    "sorted": (lambda odd: mt.gather_mm(X[:, None], EXPERTS.swapaxes(-1, -2), rhs_indices=IDS[:, 0], sorted_indices=odd), "sorted_indices is a"),
    "builder": (lambda odd: mt.tile_plan(IDS, num_experts=2, builder=odd), "builder .* is unknown"),
    "down": (lambda odd: mt.switch_glu(X, EXPERTS, EXPERTS, odd, IDS), "down is a|down's w is a"),
}


@pytest.mark.parametrize("odd", [7.5, object(), [1, 2], np.ones((2, 2)), np.ones(1)], ids=["float", "object", "list", "ndarray", "one"])
@pytest.mark.parametrize("name", CALLS)
def test_odd(name, odd):
    call, said = CALLS[name]
    with pytest.raises(TensorOpsError, match=f"(?s){said}"):
        call(odd)


def test_a_switch_that_names_no_engine_is_named(monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_ENGINE", "gpu")
    monkeypatch.setattr("mlx_tensorops.primitives.matmul._plans", {})  # a call that is resolved already does not read it
    a = mx.ones((2, 2))
    with pytest.raises(EngineError, match=r"\[matmul\] MLX_TENSOROPS_ENGINE = 'gpu' is unknown"):
        mt.matmul(a, a)
    assert np.array_equal(np.array(mt.matmul(a, a, engine="mlx")), [[2, 2], [2, 2]])
