"""The public ``gather_gateup``: two weight tensors against the same rows of x."""

from __future__ import annotations

from .. import tracing
from ..errors import DTypeError, fail
from . import _expert_call, _warm, _weights
from ._expert_call import Call, as_tuple

OP = "gather_gateup"

_warm_calls = _warm.Warm()
_recording = tracing.recording


def gather_gateup(x, gate, up, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine", *,
                  activation="swiglu", bias=None, global_scale=None, weight_scale_2=None, sorted_indices=False, plan=None, out_dtype=None,
                  precision="exact", engine="auto", stream=None):
    """``activation(x[lhs] @ gate[rhs], x[lhs] @ up[rhs])``: two weight tensors, never concatenated, against one load of x.

    Args:
        x: array ``[..., M, K]``.
        gate, up: quantised weights as the tuple that ``mx.quantize`` returns, ``(w, scales)`` or ``(w, scales, biases)``; dense weights as
            an array. Both of one shape, ``[experts..., N, K]``; ``transpose=False``: ``[experts..., K, N]``.
        lhs_indices, rhs_indices, sorted_indices, plan: as for :func:`gather_mm`.
        transpose, group_size, bits, mode: as for :func:`quantized_matmul`; the last three are for quantised weights.
        activation: "swiglu" (``silu(g) * u``), "geglu_tanh", "geglu_erf", "swiglu_clamped" (gpt-oss: ``g`` at most 7, ``u`` within -7 .. 7,
            ``g * sigmoid(1.702 * g) * (u + 1)``), or None for both products.
        bias: pair of arrays ``[experts..., N]``, added before the activation.
        global_scale, weight_scale_2: pair of arrays, each as for :func:`gather_qmm`.
        out_dtype: element type of the result; default: the common type of x and the weights, as for :func:`gather_qmm`.
        precision, engine, stream: as for :func:`matmul`.

    Returns:
        Array ``[*broadcast(lhs_indices, rhs_indices), M, N]``, or a list of two of them; lazy. Products, biases and activation are
        computed in f32 and rounded once, on every engine.

    Raises: as :func:`gather_mm`.
    """
    arrays = x, gate, up, lhs_indices, rhs_indices, global_scale, weight_scale_2, bias
    words = transpose, group_size, bits, mode, activation, out_dtype, precision, engine
    if plan is None and (sorted_indices is False or sorted_indices is True) and not _recording:
        found = _warm_calls.call(stream, arrays, words)
        if found is not None:
            return found
    results = _expert_call.run(call(x, gate, up, lhs_indices, rhs_indices, transpose, (mode, group_size, bits), activation, bias, global_scale,
                                    weight_scale_2, sorted_indices, plan, out_dtype, precision, engine, stream), (_warm_calls, arrays, words))
    return results if activation is None else results[0]


def describe_gather_gateup(x, gate, up, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine", *,
                           activation="swiglu", bias=None, global_scale=None, weight_scale_2=None, sorted_indices=False, plan=None,
                           out_dtype=None, precision="exact", engine="auto", stream=None):
    """(decision, shapes of the kernel's inputs) of the call ``gather_gateup`` would make: the part that explain() needs."""
    return _expert_call.describe(call(x, gate, up, lhs_indices, rhs_indices, transpose, (mode, group_size, bits), activation, bias, global_scale,
                                      weight_scale_2, sorted_indices, plan, out_dtype, precision, engine, stream))


def call(x, gate, up, lhs, rhs, transpose, mode, activation, bias, amax, prescaled, sorted_indices, plan, out_dtype, precision, engine, stream) -> Call:
    """The call of these arguments; ``mode`` is (mode, group_size, bits), which dense weights do not look at."""
    gate, up = _weights.as_group(OP, "gate", gate), _weights.as_group(OP, "up", up)
    if (gate.scales is None) != (up.scales is None):
        fail(OP, "one of gate and up is quantised, the other dense", instead="pass both alike", cls=DTypeError)
    if gate.scales is None:
        mode = _weights.no_mode(OP, mode)
    factors = (as_tuple(OP, name, value, 2) for name, value in (("global_scale", amax), ("weight_scale_2", prescaled), ("bias", bias)))
    return Call(OP, x, (gate, up), lhs, rhs, transpose, mode, *factors, activation, sorted_indices, plan, out_dtype, precision, engine, stream)
