"""What is asked, with no device in it: frozen, hashable descriptions of a problem.

Sizes are not part of a spec. They arrive with the arrays, and a new sequence length is no new problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from .epilogues import Epilogue
from .errors import DTypeError, TensorOpsError, fail

PRECISIONS = ("exact", "tf32")


@dataclass(frozen=True)
class GemmSpec:
    """``out[..., M, N] = epilogue(a[..., M, K] @ b[..., K, N])``.

    Attributes:
        a, b, out: MLX dtype names. ``out`` is what the caller gets, after the rules of ``mx.matmul``.
        a_ndim, b_ndim: ranks as passed; 1 is a vector as in ``mx.matmul``.
        precision: "exact" (f32 operands keep their 24 bits) or "tf32" (they may lose low bits).
        epilogue: fused work on the accumulator.
        extras: dtype names of the epilogue's operands, in the order of ``epilogue.operands``.
    """

    a: str
    b: str
    out: str
    a_ndim: int = 2
    b_ndim: int = 2
    precision: str = "exact"
    epilogue: Epilogue = Epilogue()
    extras: tuple[str, ...] = ()

    op = "matmul"

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            fail(self.op, f"precision {self.precision!r} is unknown", nearest=", ".join(PRECISIONS), cls=TensorOpsError)
        if self.out not in ("float16", "bfloat16", "float32", "float64", "complex64"):
            fail(self.op, f"out_dtype {self.out} is no floating type", nearest="float16, bfloat16, float32", cls=DTypeError)
        if len(self.extras) != len(self.epilogue.operands):
            fail(self.op, f"{len(self.extras)} epilogue operands for {self.epilogue.operands}", cls=TensorOpsError)

    @property
    def batched(self) -> bool:
        """Whether an operand has leading axes."""
        return max(self.a_ndim, self.b_ndim) > 2
