"""Arguments of a dispatch: what Python hands over, as bytes, and back."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

from ..errors import fail
from .signature import Parameter

_SCALARS = {
    "bool": "?", "char": "b", "int8_t": "b", "uchar": "B", "uint8_t": "B", "short": "h", "int16_t": "h", "ushort": "H", "uint16_t": "H",
    "int": "i", "int32_t": "i", "uint": "I", "uint32_t": "I", "long": "q", "int64_t": "q", "ulong": "Q", "uint64_t": "Q", "size_t": "Q",
    "half": "e", "float": "f",
}  # fmt: skip


def _is_mlx(value: Any) -> bool:
    return type(value).__module__.startswith("mlx.")


@dataclass
class Argument:
    """One buffer in memory: ``data`` keeps the bytes alive, ``back`` turns them into what the caller passed."""

    parameter: Parameter
    data: Any
    address: int
    size: int
    original: Any

    def output(self) -> Any:
        """The argument after the dispatch: new if the kernel may write it, else the caller's own."""
        if not self.parameter.writable:
            return self.original
        if _is_mlx(self.original):
            import mlx.core as mx

            result = mx.array(self.data)
            return result.view(self.original.dtype) if self.original.dtype == mx.bfloat16 else result
        if isinstance(self.original, (bytes, bytearray, memoryview)):
            return bytes(self.data)
        return self.data


def argument(parameter: Parameter, value: Any) -> Argument:
    """Copies a value so that the kernel may write it; the caller's own is never changed."""
    import numpy as np

    original = value
    if _is_mlx(value):
        import mlx.core as mx

        if value.dtype == mx.bfloat16:
            value = value.view(mx.uint16)
        value = np.array(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = np.frombuffer(bytes(value), np.uint8).copy()
    elif isinstance(value, (bool, int, float)):
        data = _scalar(parameter, value)
    elif isinstance(value, ctypes.Structure):
        data = np.frombuffer(bytes(value), np.uint8).copy()
    elif isinstance(value, (np.ndarray, np.generic)):
        data = np.array(value, order="C", copy=True)
        if data.dtype.hasobject:
            fail("hostmetal", f"buffer '{parameter.name}' holds Python objects", nearest="numbers")
        declared = np.dtype(_code(parameter) or "V1")
        if data.dtype.kind == "f" and declared.kind in "fiu?" and data.dtype != declared:  # else its bits would be read as other numbers
            if data.size == 1 and parameter.type.rstrip().endswith("&"):
                data = _scalar(parameter, data.item())
            else:
                fail("hostmetal", f"buffer '{parameter.name}' holds {data.dtype} and the kernel reads '{parameter.type}'",
                     nearest=str(declared), instead="convert it, or pass bytes to reinterpret them")
    else:
        fail("hostmetal", f"buffer '{parameter.name}' is a {type(value).__name__}", nearest="a NumPy or MLX array, a number, or bytes")
    return Argument(parameter, data, data.ctypes.data, data.nbytes, original)


def _code(parameter: Parameter) -> str | None:
    """Struct letter of the scalar type that a parameter points or refers to; None for anything else."""
    words = [w for w in parameter.type.replace("&", " ").replace("*", " ").split() if w not in ("constant", "device", "const", "__restrict")]
    return _SCALARS.get(words[-1].rpartition("::")[2]) if words else None


def _scalar(parameter: Parameter, value: bool | int | float) -> Any:
    import numpy as np

    code = _code(parameter)
    if code is None:
        fail("hostmetal", f"buffer '{parameter.name}' of type '{parameter.type}' cannot be made from the number {value!r}",
             instead="pass a NumPy array or bytes")
    try:
        packed = struct.pack("<" + code, bool(value) if code == "?" else float(value) if code in "ef" else value)
    except (struct.error, OverflowError) as error:
        fail("hostmetal", f"buffer '{parameter.name}': {value!r} does not fit '{parameter.type}' ({error})")
    return np.frombuffer(packed, np.uint8).copy()
