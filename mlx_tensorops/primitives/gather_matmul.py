"""The public ``gather_mm`` and ``gather_qmm``."""

from __future__ import annotations

from .. import tracing
from ..errors import ShapeError, fail
from . import _expert_call, _warm, _weights
from ._expert_call import Call, one
from ._weights import Group

_warm_mm, _warm_qmm = _warm.Warm(), _warm.Warm()
_recording = tracing.recording


def gather_mm(a, b, lhs_indices=None, rhs_indices=None, *, sorted_indices=False, plan=None, bias=None, activation=None, out_dtype=None,
              precision="exact", engine="auto", stream=None):
    """``activation(a[lhs] @ b[rhs] + bias[rhs])``, as ``mx.gather_mm``, with f32 accumulation.

    Args:
        a: array ``[..., M, K]``, or ``[K]``.
        b: array ``[..., K, N]``, or ``[K]``: an expert per index of the leading axes.
        lhs_indices, rhs_indices: integer arrays that broadcast together: flat indices into the leading axes of a and b. NumPy arrays
            and lists are checked at once. In an MLX array, whose values are not looked at, an index out of range gives rows of zeros.
        sorted_indices: the caller's promise that rhs_indices ascend.
        plan: a ``tile_plan`` of these very rhs_indices, shared between calls. It changes how the rows are walked, not the result. Compared
            with rhs_indices at once where the host knows both; of MLX arrays engine cpu compares them when it runs, the Metal engines take its word.
        bias: array ``[..., N]``, one row for each expert, added before the activation.
        activation: None, "relu", "gelu_tanh", "gelu_erf" or "silu".
        out_dtype: element type of the result; default: that of ``mx.gather_mm``.
        precision, engine, stream: as for :func:`matmul`.

    Returns:
        Array ``[*broadcast(lhs_indices, rhs_indices), M, N]``; lazy.

    Raises:
        ShapeError, DTypeError: what ``mx.gather_mm`` refuses, and a plan of other rows or experts.
        TensorOpsError: an index that the host can see is out of range.
        EngineError: the named engine does not exist or cannot run this here; the text says why.

    Engine notes: engines mpp and simdgroup run emulated inside ``hostmetal.active()``; they read b in place whatever its strides.
    Rows fewer than 16, or than the experts, go one by one in any order; for others a plan is made unless one is passed or the indices are sorted.
    ``mx.compile(shapeless=True)`` replays other sizes where each index has one row of a and lhs_indices are not given; elsewhere, and in
    gradients, it raises. A replay walks its rows as the traced call did: trace with many. Engine mlx keeps indices of MLX arrays in
    range before MLX sees them.
    """
    arrays = a, b, lhs_indices, rhs_indices, None, None, bias
    words = out_dtype, precision, engine, activation
    if plan is None and (sorted_indices is False or sorted_indices is True) and not _recording:
        y = _warm_mm.call(stream, arrays, words)
        if y is not None:
            return y
    y = _expert_call.run(_dense(a, b, lhs_indices, rhs_indices, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream),
                         (_warm_mm, arrays, words))[0]
    axes = a.ndim, b.ndim
    return y if axes[0] > 1 < axes[1] else y.squeeze([axis for axis, count in zip((-2, -1), axes) if count == 1])


def _dense(a, b, lhs, rhs, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream) -> Call:
    if getattr(a, "ndim", 0) < 2 or getattr(b, "ndim", 0) < 2:
        a, b = _matrices(a, b)
    return Call("gather_mm", a, (Group(b),), lhs, rhs, False, None, None, None, one(bias), activation, sorted_indices, plan, out_dtype, precision, engine,
                stream)


def _matrices(a, b) -> tuple:
    """Operands of which one is a vector, as matrices."""
    import mlx.core as mx

    _weights.dense_types(mx, "gather_mm", ("a", "b"), a, b)
    if a.ndim == 0 or b.ndim == 0:
        fail("gather_mm", f"a has shape {a.shape} and b has shape {b.shape}: a scalar is no matrix", instead="multiply with *", cls=ShapeError)
    return a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b


def gather_qmm(x, w, scales, biases=None, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine",
               global_scale=None, *, sorted_indices=False, plan=None, weight_scale_2=None, bias=None, activation=None, out_dtype=None,
               precision="exact", engine="auto", stream=None):
    """``activation(x[lhs] @ W[rhs] * factor[rhs] + bias[rhs])`` for quantised weights W, as ``mx.gather_qmm``, with f32 accumulation.

    Args:
        x: array ``[..., M, K]``.
        w, scales, biases, transpose, group_size, bits, mode: as for :func:`quantized_matmul`, with an expert per index of the leading axes.
        lhs_indices, rhs_indices, sorted_indices, plan, bias, activation: as for :func:`gather_mm`.
        global_scale: float32 ``[experts]``: the largest magnitude of each expert's nvfp4 weights, as in ``mx.gather_qmm``.
        weight_scale_2: the same factors already divided by 2688, as ModelOpt stores them. One of the two at most.
        out_dtype: element type of the result; default: that of ``mx.gather_qmm``.
        precision, engine, stream: as for :func:`matmul`.

    Returns, raises: as :func:`gather_mm`.

    Engine notes: MLX itself has no global scale on CPU streams; every engine here has it.
    """
    arrays = x, (w, scales, biases), lhs_indices, rhs_indices, global_scale, weight_scale_2, bias
    words = transpose, group_size, bits, mode, out_dtype, precision, engine, activation
    if plan is None and (sorted_indices is False or sorted_indices is True) and not _recording:
        y = _warm_qmm.call(stream, arrays, words)
        if y is not None:
            return y
    call = Call("gather_qmm", x, (Group(w, scales, biases),), lhs_indices, rhs_indices, transpose, (mode, group_size, bits), one(global_scale),
                one(weight_scale_2), one(bias), activation, sorted_indices, plan, out_dtype, precision, engine, stream)
    return _expert_call.run(call, (_warm_qmm, arrays, words))[0]


def describe_gather_mm(a, b, lhs_indices=None, rhs_indices=None, *, sorted_indices=False, plan=None, bias=None, activation=None, out_dtype=None,
                       precision="exact", engine="auto", stream=None):
    """(decision, shapes of the kernel's inputs) of the call ``gather_mm`` would make: the part that explain() needs."""
    return _expert_call.describe(_dense(a, b, lhs_indices, rhs_indices, sorted_indices, plan, bias, activation, out_dtype, precision, engine, stream))


def describe_gather_qmm(x, w, scales, biases=None, lhs_indices=None, rhs_indices=None, transpose=True, group_size=None, bits=None, mode="affine",
                        global_scale=None, *, sorted_indices=False, plan=None, weight_scale_2=None, bias=None, activation=None, out_dtype=None,
                        precision="exact", engine="auto", stream=None):
    """The same for ``gather_qmm``."""
    return _expert_call.describe(Call(
        "gather_qmm", x, (Group(w, scales, biases),), lhs_indices, rhs_indices, transpose, (mode, group_size, bits), one(global_scale), one(weight_scale_2),
        one(bias), activation, sorted_indices, plan, out_dtype, precision, engine, stream))
