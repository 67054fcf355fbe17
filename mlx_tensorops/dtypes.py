"""Element types: their names in MLX and in Metal, their sizes, and which triples matmul2d takes.

Sources: Metal Shading Language Specification 4.0 section 2 (sizes, names); the dtype tables that
the MPPTensorOpsMatMul2d headers of SDK 26.0, 26.1, 26.4 and 27.0 dispatch on.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import DTypeError, fail


@dataclass(frozen=True)
class ElementType:
    """One element type.

    Attributes:
        name: MLX's name, e.g. ``"float16"``.
        short: name used in kernel names, e.g. ``"f16"``.
        msl: Metal's name, e.g. ``"half"``.
        bytes: size of one element.
        significand: significant bits including the hidden one; 0 for integers.
    """

    name: str
    short: str
    msl: str
    bytes: int
    significand: int

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger value."""
        return 2.0 ** (1 - self.significand)


FLOAT16 = ElementType("float16", "f16", "half", 2, 11)
BFLOAT16 = ElementType("bfloat16", "bf16", "bfloat", 2, 8)
FLOAT32 = ElementType("float32", "f32", "float", 4, 24)
INT8 = ElementType("int8", "i8", "char", 1, 0)
INT32 = ElementType("int32", "i32", "int", 4, 0)
UINT8 = ElementType("uint8", "u8", "uchar", 1, 0)
UINT32 = ElementType("uint32", "u32", "uint", 4, 0)

ELEMENT_TYPES = {t.name: t for t in (FLOAT16, BFLOAT16, FLOAT32, INT8, INT32, UINT8, UINT32)}


def element_type(name: str, op: str = "dtypes") -> ElementType:
    """The entry of a name, or a DTypeError that lists the known ones."""
    found = ELEMENT_TYPES.get(name)
    if found is None:
        fail(op, f"element type {name!r} has no Metal matrix kernel", nearest=", ".join(ELEMENT_TYPES), cls=DTypeError)
    return found


_H, _B, _F, _I8 = "float16", "bfloat16", "float32", "int8"

# (left, right) -> destinations of matmul2d, by the first SDK that dispatches the row.
MATMUL2D_TRIPLES: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {
    "26.0": {
        (_I8, _I8): ("int32",), (_I8, _H): (_H, _F), (_I8, _F): (_F,), (_H, _I8): (_H, _F),
        (_H, _H): (_H, _F), (_H, _F): (_F,), (_F, _I8): (_F,), (_F, _H): (_F,), (_F, _F): (_F,),
    },
    "26.1": {
        (_B, _B): (_B, _F), (_B, _F): (_F,), (_F, _B): (_F,), (_B, _I8): (_B, _F), (_I8, _B): (_B, _F),
        (_B, _H): (_B, _H, _F), (_H, _B): (_B, _H, _F),
    },
}


def matmul2d_since(left: str, right: str, destination: str) -> str | None:
    """First SDK whose matmul2d takes the triple, or None."""
    for sdk, rows in MATMUL2D_TRIPLES.items():
        if destination in rows.get((left, right), ()):
            return sdk
    return None
