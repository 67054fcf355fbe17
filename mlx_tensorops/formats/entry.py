"""One block-quantised weight format, valid by construction."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

from ..errors import TensorOpsError, fail

PACK = 8  # weights decoded together: ``bits`` bytes in every format, and every group is a multiple of it

BITS = (1, 2, 3, 4, 5, 6, 8)  # of MLX, and of every decoder here
CODES = ("unsigned", "e2m1", "e4m3", "table")
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
        values: value of each code, for codes = "table"; kept rounded to float32.

    Raises:
        TensorOpsError: the fields contradict each other, or no decoder here could read such weights.
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

    def __post_init__(self):
        for field in ("name", "mode"):
            word = getattr(self, field)
            if not isinstance(word, str) or not re.fullmatch("[a-z][a-z0-9_]*", word):
                self._fail(f"{field} {word!r} is no word of a-z, 0-9 and _ that starts with a letter",
                           nearest=re.sub("^[^a-z]+|[^a-z0-9_]", "", str(word).lower()) or None)
        if type(self.bits) is not int or self.bits not in BITS:
            self._fail(f"bits {self.bits!r}: a code has {', '.join(map(str, BITS))} bits", nearest=_nearest(self.bits, BITS))
        if self.codes not in CODES:
            self._fail(f"codes {self.codes!r} is unknown", nearest=", ".join(map(repr, CODES)), instead="codes='table' with the value of every code")
        if self.scale not in SCALES:
            self._fail(f"scale {self.scale!r} is unknown", nearest=", ".join(map(repr, SCALES)))
        self._check_group()
        needed = {"e2m1": 4, "e4m3": 8}.get(self.codes, self.bits)
        if self.bits != needed:
            self._fail(f"codes {self.codes!r} with bits {self.bits}: such a code has {needed}", nearest=f"bits={needed}", instead="codes='table'")
        if self.biased and self.scale != "float":
            self._fail(f"biased with scale {self.scale!r}: a bias is stored like a scale, and one byte is too coarse for it", nearest="scale='float'")
        if self.global_scale and (self.codes, self.scale) != ("e2m1", "e4m3"):
            self._fail(f"global_scale with codes {self.codes!r} and scale {self.scale!r}: a tensor's amax is mapped to 448 times 6, the largest of "
                       "e4m3 times the largest of e2m1", instead="codes='e2m1', scale='e4m3'; or multiply the scales by the factor")
        object.__setattr__(self, "values", self._float32_values())

    def _check_group(self) -> None:
        step = max(PACK, 32 // math.gcd(32, self.bits))
        if not isinstance(self.group, int) or self.group <= 0 or self.group % step:
            self._fail(f"group {self.group!r}: groups of {self.bits}-bit codes are a multiple of {step}, so that packs of {PACK} codes never "
                       "straddle two groups and rows end on a uint32 word", nearest=f"group={_multiple(self.group, step)}")

    def _float32_values(self) -> tuple[float, ...]:
        if self.codes != "table":
            if self.values:
                self._fail(f"values with codes {self.codes!r}, whose values are known", instead="codes='table'")
            return ()
        values = tuple(self.values)
        if len(values) != 2**self.bits:
            self._fail(f"values has {len(values)} entries: one for each of the {2**self.bits} codes of {self.bits} bits", nearest=f"{2**self.bits} values")
        try:
            rounded = struct.unpack(f"{len(values)}f", struct.pack(f"{len(values)}f", *values))
        except (OverflowError, struct.error, TypeError):
            rounded = (math.inf,)
        if not all(map(math.isfinite, rounded)):
            bad = next((v for v in values if not isinstance(v, (int, float)) or not abs(v) <= 2.0**127 * (2 - 2.0**-23)), values)
            self._fail(f"values holds {bad!r}: a value is finite in float32", nearest="at most 3.4028235e38 in magnitude")
        if not any(rounded):
            self._fail("values are all zero in float32, so that every weight would be", nearest="at least one value that is not 0")
        return rounded

    def _fail(self, what: str, *, nearest: object = None, instead: str | None = None):
        fail(f"Format {self.name!r}", what, nearest=nearest, instead=instead, cls=TensorOpsError)

    @property
    def native(self) -> tuple:
        """The format as the compiled extension takes it: (codes, bits, group, scale, values)."""
        return self.codes, self.bits, self.group, self.scale, list(self.values)


def _nearest(value, legal):
    return min(legal, key=lambda known: abs(known - value)) if isinstance(value, (int, float)) else legal[0]


def _multiple(value, step: int) -> int:
    return max(1, round(value / step)) * step if isinstance(value, int) else step
