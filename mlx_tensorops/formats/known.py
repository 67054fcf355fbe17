"""The formats this process knows: MLX's, and those that a user registered."""

from __future__ import annotations

from functools import lru_cache
from numbers import Integral

from ..errors import DTypeError, TensorOpsError, fail
from .entry import Format


def _affine(bits: int, group: int) -> Format:
    return Format(f"affine{bits}_g{group}", "affine", bits, group, "unsigned", "float", biased=True)


BUILT_IN = (
    *(_affine(bits, group) for bits in (1, 2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
    Format("mxfp4", "mxfp4", 4, 32, "e2m1", "e8m0"),
    Format("mxfp8", "mxfp8", 8, 32, "e4m3", "e8m0"),
    Format("nvfp4", "nvfp4", 4, 16, "e2m1", "e4m3", global_scale=True),
)

_DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}  # (group, bits) of mx.quantize

_formats: dict[str, Format] = {f.name: f for f in BUILT_IN}


def formats() -> dict[str, Format]:
    """Every known format by name."""
    return dict(_formats)


def by_name(name: str) -> Format:
    """The format of that name, or an error that lists the known ones."""
    if not isinstance(name, str) or name not in _formats:
        fail("formats", f"no weight format is called {name!r}", nearest=", ".join(_formats), cls=TensorOpsError)
    return _formats[name]


def find(op: str, mode: str, group_size: int | None, bits: int | None) -> Format:
    """The format that MLX's three words name; None takes the mode's default.

    Raises:
        DTypeError: no such mode, or the mode has no such group size or bits. MLX itself reads an "nvfp4" weight of group 32 as mxfp4.
    """
    check_words(op, mode, group_size, bits)
    return _find(op, mode, group_size, bits)


def check_words(op: str, mode, group_size, bits) -> None:
    """Refuse words of another kind, as MLX does: 4.0 and True would find the format of 4 and 1."""
    if type(mode) is str and (group_size is None or type(group_size) is int) and (bits is None or type(bits) is int):
        return
    if not isinstance(mode, str):
        fail(op, f"mode {mode!r} is a {type(mode).__name__}", nearest='the name of a mode, e.g. "affine"', cls=DTypeError)
    for name, value in (("group_size", group_size), ("bits", bits)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            fail(op, f"{name} {value!r} is a {type(value).__name__}", nearest="a whole number, or None for the mode's default", cls=DTypeError)


@lru_cache(maxsize=None)
def _find(op: str, mode: str, group_size: int | None, bits: int | None) -> Format:
    of_mode = [f for f in _formats.values() if f.mode == mode]
    if not of_mode:
        fail(op, f"mode {mode!r} is unknown", nearest=", ".join(dict.fromkeys(f.mode for f in _formats.values())), cls=DTypeError)
    default_group, default_bits = _DEFAULTS.get(mode, (of_mode[0].group, of_mode[0].bits))
    group, bits = default_group if group_size is None else group_size, default_bits if bits is None else bits
    for f in of_mode:
        if (f.group, f.bits) == (group, bits):
            return f
    fail(op, f"mode {mode!r} has no group_size {group} with {bits} bits",
         nearest="; ".join(f"group_size {f.group}, bits {f.bits}" for f in of_mode), cls=DTypeError)


def register_format(format: Format) -> Format:
    """Makes a format of your own known to every operation that takes a ``mode``; returns it.

    A mode may have several group sizes and bits, each a format of its own; the first registered is the mode's default.
    Registering the same format again does nothing.

    Example:
        >>> nf2 = Format("nf2", "nf2", bits=2, group=32, codes="table", scale="float", values=(-1.0, -0.3, 0.3, 1.0))
        >>> register_format(nf2)

    Raises:
        TensorOpsError: the name, or the mode with this group size and bits, belongs to another format.
    """
    op = "register_format"
    if not isinstance(format, Format):
        fail(op, f"{format!r} is no Format", instead="mlx_tensorops.formats.Format(name, mode, bits, group, codes, scale, ...)")
    known = _formats.get(format.name)
    if known == format:
        return known
    if known is not None:
        fail(op, f"name {format.name!r} belongs to another format, and kernels are named after it", nearest=f"name={_free(format.name)!r}")
    if format.mode in _DEFAULTS:
        fail(op, f"mode {format.mode!r} is MLX's, and has the group sizes and bits that MLX gives it", nearest=f"mode={format.name!r}")
    for other in _formats.values():
        if (other.mode, other.group, other.bits) == (format.mode, format.group, format.bits):
            fail(op, f"mode {format.mode!r} with group_size {format.group} and {format.bits} bits is format {other.name!r}", nearest=f"mode={format.name!r}")
    _formats[format.name] = format
    _find.cache_clear()
    return format


def _free(name: str) -> str:
    number = 2
    while f"{name}_{number}" in _formats:
        number += 1
    return f"{name}_{number}"
