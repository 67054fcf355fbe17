"""Hardware paths that would take a format's packed codes as they are. Known, not built: every kernel here decodes first.

Sources: MPPTensorOpsMatMul2d.h and the format types of the Metal standard library, SDK 26.4 (language version 4.0) and SDK 27.0
(language version 4.1); the static assertions on scale planes in the latter.
"""

from __future__ import annotations

from dataclasses import dataclass

from .entry import Format


@dataclass(frozen=True)
class Tier:
    """One path.

    Attributes:
        operand: Metal's element type of the packed weights, as matmul2d's right operand.
        plane: Metal's element type of a scale plane that the hardware applies; "" where scales are ours to apply, to a sum per group.
        left: element types of the activations that it takes.
        sdk: first SDK with it.
        metal: language version it needs.
        limits: what else it asks for.
        built: whether a kernel of this package uses it.
    """

    operand: str
    plane: str
    left: tuple[str, ...]
    sdk: str
    metal: str
    limits: str = ""
    built: bool = False


_HALF, _HALVES = ("float16",), ("float16", "bfloat16")
_PLANE = "metal_fp8_ue8m0_format"
_PLANE_LIMITS = "weights [N, K] (transpose=True) only; whether half activations go with a scaled right operand is not known"

# (codes, bits) -> paths for the codes alone.
_OPERANDS = {
    ("unsigned", 2): Tier("uint2b_format", "", _HALVES, "27.0", "4.1"),
    ("unsigned", 4): Tier("uint4b_format", "", _HALVES, "26.4", "4.0"),
    ("unsigned", 8): Tier("uchar", "", _HALVES, "26.4", "4.0"),
    ("e2m1", 4): Tier("metal_fp4_e2m1_format", "", _HALF, "27.0", "4.1"),
    ("e4m3", 8): Tier("metal_fp8_e4m3_format", "", _HALF, "27.0", "4.1"),
}

_PLANE_GROUP = 32  # the only block of a scale plane that the header accepts


def tiers(format: Format) -> tuple[Tier, ...]:
    """The paths that could take this format's weights, oldest SDK first."""
    codes = _OPERANDS.get((format.codes, format.bits))
    if codes is None:
        return ()
    if format.codes in ("e2m1", "e4m3") and (format.scale, format.group) == ("e8m0", _PLANE_GROUP):
        return codes, Tier(codes.operand, _PLANE, codes.left, codes.sdk, codes.metal, _PLANE_LIMITS)
    return (codes,)
