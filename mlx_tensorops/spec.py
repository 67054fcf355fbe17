"""What is asked, with no device in it: frozen, hashable descriptions of a problem.

Sizes are not part of a spec. They arrive with the arrays, and a new sequence length is no new problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from .epilogues import GATES, Epilogue
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

    @property
    def operands(self) -> tuple[str, ...]:
        """Dtype names of what is multiplied."""
        return self.a, self.b

    @property
    def mlx_has_it(self) -> bool:
        """Whether MLX has the whole function, so that falling back costs nothing."""
        return not self.epilogue


GLOBAL_SCALES = ("", "amax", "prescaled")
ROW_SOURCES = ("whole", "runs", "plan")


@dataclass(frozen=True)
class WeightSpec:
    """How a weight matrix is stored.

    Attributes:
        format: name of a format of ``formats``; "" for dense weights.
        stored: dtype name of the array: "uint32" for packed weights.
        scales: dtype name of the group scales (and biases); "" for dense weights.
        transpose: whether the array is ``[..., N, K]`` (packed along K), else ``[..., K, N]`` (packed along N).
        global_scale: "" for none; "amax": one float32 per matrix, the weights' largest magnitude, as MLX's ``global_scale``;
            "prescaled": that number already divided by 2688, as ModelOpt's ``weight_scale_2``.
    """

    format: str
    stored: str
    scales: str = ""
    transpose: bool = True
    global_scale: str = ""

    def __post_init__(self):
        if self.global_scale not in GLOBAL_SCALES:
            fail("quantized_matmul", f"global scale convention {self.global_scale!r} is unknown", nearest=", ".join(GLOBAL_SCALES[1:]))


@dataclass(frozen=True)
class WeightedSpec:
    """``out = epilogue(x @ weights)`` for stored weights: whole matrices, or rows that each belong to an expert.

    Attributes:
        x, out: MLX dtype names.
        weights: how the weights are stored; all destinations alike.
        batched: whether x and the weights carry one leading batch axis ("whole" only).
        rows: "whole": all rows of x meet one matrix; "runs": rows sorted by expert, ids beside them; "plan": a tile plan names them.
        indirect: whether an index array names the row of x that each row of the result multiplies.
        destinations: weight tensors that meet the same rows of x.
        gate: how two destinations become one result, a name of ``epilogues.GATES``; "" keeps them apart.
        block_m: rows per tile of the plan; 0 without one.
        precision: as for GemmSpec.
        epilogue: fused work on the accumulator; ``bias`` is per expert unless rows is "whole".
        extras: dtype names of the epilogue's operands.
        op: public operation, for messages.
    """

    x: str
    out: str
    weights: WeightSpec
    batched: bool = False
    rows: str = "whole"
    indirect: bool = False
    destinations: int = 1
    gate: str = ""
    block_m: int = 0
    precision: str = "exact"
    epilogue: Epilogue = Epilogue()
    extras: tuple[str, ...] = ()
    op: str = "quantized_matmul"

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            fail(self.op, f"precision {self.precision!r} is unknown", nearest=", ".join(PRECISIONS), cls=TensorOpsError)
        if self.rows not in ROW_SOURCES:
            fail(self.op, f"row source {self.rows!r} is unknown", nearest=", ".join(ROW_SOURCES), cls=TensorOpsError)
        if self.destinations < 1:
            fail(self.op, f"{self.destinations} destinations", nearest="1", cls=TensorOpsError)
        if self.gate and (self.destinations != 2 or self.gate not in GATES):
            fail(self.op, f"gate {self.gate!r} of {self.destinations} destinations", nearest=", ".join(GATES), cls=TensorOpsError)

    @property
    def mlx_has_it(self) -> bool:
        """Whether MLX has the whole function, so that falling back costs nothing."""
        return not (self.epilogue or self.weights.global_scale or self.destinations > 1 or self.rows == "plan")

    @property
    def operands(self) -> tuple[str, ...]:
        """Dtype names of what is multiplied: packed weights count as x's type."""
        return self.x, self.x if self.weights.format else self.weights.stored


@dataclass(frozen=True)
class TilePlanSpec:
    """Rows sorted by expert and cut into tiles.

    Attributes:
        ids: dtype name of the expert ids; how many experts there are and how tall a tile is comes with the arrays.
    """

    ids: str

    op = "tile_plan"
    precision = "exact"
    mlx_has_it = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Dtype names of what is multiplied: nothing is."""
        return ()


@dataclass(frozen=True)
class CombineSpec:
    """``out[t, n] = sum_j scores[t, j] * y[t, j, n] (+ addend_scores[t] * addend[t, n])``, for k rows of each token.

    Attributes:
        y, scores, out: MLX dtype names.
        addend: dtype name of a row per token that is added last; "" for none.
        addend_scores: dtype name of its weights, one per token; "" for none.
    """

    y: str
    scores: str
    out: str
    addend: str = ""
    addend_scores: str = ""

    op = "switch_glu"
    precision = "exact"
    mlx_has_it = False

    def __post_init__(self):
        if self.addend_scores and not self.addend:
            fail(self.op, "weights of an addend without the addend")

    @property
    def operands(self) -> tuple[str, ...]:
        """Dtype names of what is multiplied by a matrix unit: nothing is."""
        return ()
