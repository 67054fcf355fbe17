"""Dense GEMM: sizes of a call as explain() tells them."""

from __future__ import annotations

import itertools
import math

from ..dtypes import ELEMENT_TYPES


def work(spec, shapes) -> tuple[int, int]:
    """(flops, bytes) of a product, operands and result counted once."""
    a, b = (tuple(s) for s in shapes)
    m, k = (1 if len(a) == 1 else a[-2]), a[-1]
    n = 1 if len(b) == 1 else b[-1]
    left, right = a[:-2][::-1], b[:-2][::-1]
    batch = math.prod(y if x == 1 else x for x, y in itertools.zip_longest(left, right, fillvalue=1))
    sizes = {name: t.bytes for name, t in ELEMENT_TYPES.items()}
    operand_bytes = math.prod(a) * sizes.get(spec.a, 8) + math.prod(b) * sizes.get(spec.b, 8)
    return 2 * m * n * k * batch, operand_bytes + m * n * batch * sizes.get(spec.out, 8)


def seen(variant, shapes) -> list[tuple]:
    """Shapes with the axes that the caller adds; epilogue operands are taken to be full results."""
    a, b = (tuple(s) for s in shapes)
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if variant.batched:
        a, b = (1,) * (5 - len(a)) + a, (1,) * (5 - len(b)) + b
    result = tuple(y if x == 1 else x for x, y in zip(a[:-2], b[:-2])) + (a[-2], b[-1])
    return [a, b, *((2,) if name == "scales" else result for name in variant.epilogue.operands)]
