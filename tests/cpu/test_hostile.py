"""Engine cpu where the machine refuses threads, and where values leave the range that exp can take."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mt

_SCARCE = """
import resource
import numpy as np, mlx.core as mx, mlx_tensorops as mt
from mlx_tensorops.primitives import _cpu
_cpu._engine().cpu_configure(blas="never", threads=64)
a = mx.array((np.arange(360000) % 7).reshape(600, 600).astype(np.float32))
want = mx.array((np.array(a).astype(np.int64) @ np.array(a).astype(np.int64)).astype(np.float32))
mx.eval(mt.matmul(a[:2, :2], a[:2, :2], engine="cpu"))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)  # room for a few threads, not for 63
y = mt.matmul(a, a, engine="cpu")
mx.eval(y)
print(mx.array_equal(y, want).item())
"""


def test_fewer_threads_than_asked_for():
    done = subprocess.run([sys.executable, "-c", _SCARCE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("activation, sigma", [
    ("swiglu", lambda g: 1 / (1 + np.exp(-g))),
    ("geglu_tanh", lambda g: 1 / (1 + np.exp(-1.5957691216057308 * (g + 0.044715 * g**3)))),
    ("geglu_erf", None),
])
def test_a_closed_gate_stays_closed(activation, sigma):
    """x sigmoid(x) far out is 0, not 1e-36, which times 1e38 was 121."""
    g = np.array([-1e38, -3e4, -200, -120, -30, -8, 0, 3, 80])
    u = np.full(g.size, 3e38)
    x = mx.array(np.stack([g, u], 1).astype(np.float32))[:, None]
    gate, up = mx.array([[[1.0, 0.0]]]), mx.array([[[0.0, 1.0]]])
    y = mt.gather_gateup(x, gate, up, rhs_indices=mx.zeros((g.size,), mx.int32), activation=activation, engine="cpu")
    with np.errstate(over="ignore"):
        if sigma:
            want = g * sigma(g) * u
        else:
            from math import erfc

            want = g * np.array([0.5 * erfc(-v / 2**0.5) for v in g]) * u
        want = want.astype(np.float32)
    assert np.allclose(np.array(y).ravel(), want, rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu_erf"])
def test_activations_at_the_ends(activation):
    x = mx.array([[-np.inf], [np.inf], [np.nan], [-1e38]], mx.float32)
    y = np.array(mt.matmul(x, mx.ones((1, 1)), activation=activation, engine="cpu")).ravel()
    assert y[0] == 0 and y[1] == np.inf and np.isnan(y[2]) and y[3] == 0
