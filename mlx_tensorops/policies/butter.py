"""The fifteen kernels that Butter writes by hand, as kernels of this package: name there -> family, variant, tile.

``python -m tools.kernel_table`` prints the table to docs/kernels.md; tests/moe/test_butter.py runs every row. Butter's bf16 kernels but for
nax2 and steel multiply half operands under fixed powers of two; here bf16 operands are multiplied as they are. The half forms exist as option
``operands`` of dataflow staged: "half_fold", Butter's factors, which no policy takes, and "half_scaled", each row's own, which policy takes for
float16 where the hardware flushes half subnormals.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..spec import GemmSpec, WeightedSpec, WeightSpec
from ..variant import Tile
from . import qgemm
from . import weighted_simdgroup as steel

_NVFP4 = WeightSpec("nvfp4", "uint32", "uint8")
_DENSE = Tile(64, 64, 2, 2, 32, 32, 32)
_EIGHT = Tile(64, 128, 2, 4, 16, 32, 16)


@dataclass(frozen=True)
class Kernel:
    """One kernel of Butter's.

    Attributes:
        name: there, without the "butter_" in front.
        family, engine, dataflow, tile, options: the variant here.
        spec: a problem that it serves.
        differs: what is not as there; "" for nothing.
        policy: what policy takes for this problem.
    """

    name: str
    family: str
    engine: str
    dataflow: str
    tile: Tile
    spec: GemmSpec | WeightedSpec
    policy: str
    options: tuple = ()
    differs: str = ""

    @property
    def rows(self) -> str:
        """Where its rows come from, in words."""
        s = self.spec
        if isinstance(s, GemmSpec) or s.rows == "whole":
            return "one matrix"
        return {"runs": "expert runs", "plan": "tile plan"}[s.rows] + (", x by index" if s.indirect else "")


def _experts(x: str, rows: str = "runs", indirect: bool = False, destinations: int = 1, block_m: int = 0, precision: str = "exact") -> WeightedSpec:
    return WeightedSpec(x, x, _NVFP4, rows=rows, indirect=indirect, destinations=destinations, block_m=block_m, precision=precision,
                        op="gather_gateup" if destinations == 2 else "gather_qmm")


_NATIVE = "bf16 operands as they are"
_HALF_OF_FLOAT = "half operands as there, each row of x under its own power of two"
_NARROW, _STEP32, _STEP64 = (("block_k", 16),), (("block_k", 32),), (("block_k", 64),)
_SCALED = ("operands", "half_scaled")
_PLANNED = "by the plan's height: vector, 64x64 or 128x64 in operations of 16 rows"
_RUNS = "vector, 16x32, 32x64 or 64x64 in operations of 16 rows, by the number of rows"
_STEEL = "vector, 16x128, 32x64 or 64x64, by the number of rows"

KERNELS = (
    Kernel("nvfp4_moe_gather_bm16_mpp_xrows_bf16", "gather", "mpp", "staged", qgemm.NARROW, _experts("bfloat16", indirect=True),
           _RUNS, _NARROW, _NATIVE),
    Kernel("nvfp4_moe_gather_bm16_mpp_xrows_f32", "gather", "mpp", "staged", qgemm.NARROW, _experts("float32", indirect=True),
           _RUNS, _NARROW),
    Kernel("nvfp4_gather_qmm_rhs_nax_mpp_bf16", "gather", "mpp", "staged", qgemm.SHARED, _experts("bfloat16"), _RUNS, _STEP32, _NATIVE),
    Kernel("nvfp4_gather_qmm_rhs_nax_mpp_f32", "gather", "mpp", "staged", qgemm.SHARED, _experts("float32", precision="tf32"),
           _RUNS + ", f32 operands", (*_STEP32, _SCALED), _HALF_OF_FLOAT),
    Kernel("nvfp4_gather_qmm_rhs_nax64_mpp_bf16", "gather", "mpp", "staged", qgemm.SHARED, _experts("bfloat16"), _RUNS, _STEP64, _NATIVE),
    Kernel("nvfp4_gather_qmm_rhs_nax64_mpp_f32", "gather", "mpp", "staged", qgemm.SHARED, _experts("float32", precision="tf32"),
           _RUNS + ", f32 operands", (*_STEP64, _SCALED), _HALF_OF_FLOAT),
    Kernel("nvfp4_gather_steel_bgemm_bf16", "gather", "simdgroup", "steel", steel.STEEL, _experts("bfloat16"), _STEEL),
    Kernel("nvfp4_gather_steel_bgemm_dense_bf16", "qgemm", "simdgroup", "steel", steel.STEEL, WeightedSpec("bfloat16", "bfloat16", _NVFP4),
           _STEEL),
    Kernel("nvfp4_gather_steel_bm16_bgemm_bf16", "gather", "simdgroup", "steel", Tile(16, 64, 1, 4, 8, 8, 8), _experts("bfloat16"),
           _STEEL),
    Kernel("nvfp4_gather_steel_bm16_bn128_bgemm_bf16", "gather", "simdgroup", "steel", steel.NARROW, _experts("bfloat16"),
           _STEEL),
    Kernel("dense_gemm_nax2_mpp_bf16", "gemm", "mpp", "register_direct", _EIGHT, GemmSpec("bfloat16", "bfloat16", "bfloat16"),
           "direct 64x128, which others have measured", differs="fragments are filled by coordinate; by the lane map (fill=nax) behind a probe; edges are masked"),
    Kernel("dense_gemm_mpp_bf16", "gemm", "mpp", "staged", _DENSE, GemmSpec("bfloat16", "bfloat16", "bfloat16"),
           "the same where both edges are ragged or no stride is 1", differs=_NATIVE),
    Kernel("nvfp4_moe_gateup_bm16_mpp_bf16", "gateup", "mpp", "staged", qgemm.NARROW, _experts("bfloat16", destinations=2),
           _RUNS, _NARROW, _NATIVE),
    Kernel("nvfp4_moe_gateup_bm16_mpp_f32", "gateup", "mpp", "staged", qgemm.NARROW, _experts("float32", destinations=2),
           _RUNS, _NARROW),
    Kernel("nvfp4_moe_gather_eg_mpp_bf16", "gather", "mpp", "staged", qgemm.SHARED, _experts("bfloat16", "plan", block_m=64), _PLANNED, _STEP32, _NATIVE),
)


def table() -> str:
    """The table in Markdown."""
    lines = ["| Butter's kernel | family | engine, dataflow | rows | block | operations | options | x | what differs | policy takes |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for k in KERNELS:
        t = k.tile
        options = ", ".join(f"{axis}={value}" for axis, value in k.options) or "-"
        x = k.spec.a if isinstance(k.spec, GemmSpec) else k.spec.x
        block = f"{t.m}x{t.n}, {t.simdgroups} simdgroup{'s' if t.simdgroups > 1 else ''}"
        cells = (f"`{k.name}`", k.family, f"{k.engine}, {k.dataflow}", k.rows, block, f"{t.op_m}x{t.op_n}x{t.op_k}", options, x, k.differs or "-", k.policy)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
