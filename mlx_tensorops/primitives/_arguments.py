"""What every public function asks of its arguments before it looks at shapes: their kinds and their types."""

from __future__ import annotations

from ..epilogues import ACTIVATIONS
from ..errors import DTypeError, fail

FLOATS = ("float16", "bfloat16", "float32")


def dtype_name(dtype) -> str:
    """MLX's name of a dtype: mx.float16 -> "float16"."""
    return str(dtype).rsplit(".", 1)[-1]


def words(op: str, engine, precision, activation, known=ACTIVATIONS) -> None:
    """Refuse option words that are no text, and an activation that is not ``known``."""
    for name, value, kinds in (("engine", engine, str), ("precision", precision, str), ("activation", activation, (str, type(None)))):
        if not isinstance(value, kinds):
            fail(op, f"{name} is a {type(value).__name__}", instead="pass its name")
    if activation is not None and activation not in known:
        fail(op, f"activation {activation!r} is unknown", nearest=", ".join(known), instead="apply the function to the result")


def flag(op: str, name: str, value) -> None:
    """Refuse what is no bool, as MLX does."""
    if not isinstance(value, bool):
        fail(op, f"{name} is a {type(value).__name__}", nearest="True, False")


def array(mx, op: str, name: str, value, *, optional: bool = False) -> None:
    """Refuse what is no MLX array, as MLX's own operations do."""
    if not isinstance(value, mx.array) and not (optional and value is None):
        fail(op, f"{name} is a {type(value).__name__}", instead=f"pass mx.array({name})", cls=DTypeError)


def addend(mx, op: str, name: str, value) -> tuple[str, ...]:
    """Type in which an optional array is added to the f32 sum, as a tuple of one name; () where there is none."""
    array(mx, op, name, value, optional=True)
    if value is None:
        return ()
    own = dtype_name(value.dtype)
    if own in ("complex64", "float64"):
        fail(op, f"{name} is {own}, and the sum is kept in float32", nearest=f"{name}.astype(mx.float32)", cls=DTypeError)
    return (own if own in FLOATS else "float32",)


def floating(mx, value):
    """An optional array; integers as float32."""
    return value if value is None or mx.issubdtype(value.dtype, mx.floating) else value.astype(mx.float32)


def result_type(mx, op: str, out_dtype, natural: str) -> str:
    """Name of the result's type: the one asked for, else the natural one."""
    if out_dtype is None:
        return natural
    if not isinstance(out_dtype, mx.Dtype):
        fail(op, f"out_dtype {out_dtype!r} is no MLX dtype", nearest="mx.float16, mx.bfloat16, mx.float32", cls=DTypeError)
    name = dtype_name(out_dtype)
    if name not in FLOATS:
        fail(op, f"out_dtype {name} is no type this operation gives", nearest="mx.float16, mx.bfloat16, mx.float32", cls=DTypeError)
    return name
