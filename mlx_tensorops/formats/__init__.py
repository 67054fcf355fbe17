"""Block-quantised weight formats: one entry each, and everything that knows a format derives from its entry.

A group of ``group`` weights that follow each other along the packed axis shares one scale (and one bias):
``weight = value(code) * scale + bias``, times the tensor's global scale where there is one. Packed bytes are MLX's: codes form
one little-endian stream of bits per row, first code in the lowest bits, stored as uint32 words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..errors import DTypeError, TensorOpsError, fail

PACK = 8  # weights decoded together: ``bits`` bytes in every format, and every group is a multiple of it
GLOBAL_SCALE_DIVISOR = 448.0 * 6.0  # largest E4M3 times largest E2M1: a global scale that is the tensor's amax is divided by it

SCALES = ("float", "e4m3", "e8m0")


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: unique; part of kernel names.
        mode: what callers pass as ``mode``; for MLX's formats MLX's word.
        bits: bits of a code.
        group: weights that share a scale.
        codes: how a code becomes a value: "unsigned" (the number itself), "e2m1", "e4m3", or "table" (``values``).
        scale: how a scale is stored: "float" (float16, bfloat16 or float32), "e4m3" or "e8m0" (one byte).
        biased: whether each group has a bias, stored like a "float" scale.
        global_scale: whether a float32 factor for the whole tensor may come with the weights.
        values: value of each code, for codes = "table".
    """

    name: str
    mode: str
    bits: int
    group: int
    codes: str
    scale: str
    biased: bool = False
    global_scale: bool = False
    values: tuple[float, ...] = ()

    @property
    def native(self) -> tuple:
        """The format as the compiled extension takes it: (codes, bits, group, scale, values)."""
        return self.codes, self.bits, self.group, self.scale, list(self.values)


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
    if name not in _formats:
        fail("formats", f"no weight format is called {name!r}", nearest=", ".join(_formats), cls=TensorOpsError)
    return _formats[name]


@lru_cache(maxsize=None)
def find(op: str, mode: str, group_size: int | None, bits: int | None) -> Format:
    """The format that MLX's three words name; None takes the mode's default.

    Raises:
        DTypeError: no such mode, or the mode has no such group size or bits. MLX itself reads an "nvfp4" weight of group 32 as mxfp4.
    """
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
