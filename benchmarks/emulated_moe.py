"""A layer of experts in the emulator: what ours and the path of MLX 0.32.4 with mlx-lm load, multiply and wait for. Counts, no times.

python -m benchmarks.emulated_moe                     the table at full size, losses included
                                  --tokens 16 2048    other numbers of tokens
                                  --check             run both sides emulated at a small size first, and compare every count

Counts at full size follow from formulas over the rows of each expert; the check holds the formulas against the emulator's counters, ours
through ``switch_glu``, MLX's from the headers of the pinned macOS wheel, which is fetched. Multiply-adds count on any unit.

MLX's path is what its own rule picks: below 4 rows per expert one matrix-vector product per row (``gather_qmv``); from there grouped tiles
(``gather_qmm_rhs_nax``) of 32 rows, of 64 from 64 rows per expert. mlx-lm sorts the rows first, and un-sorts and adds up what comes back. Its
launches are a lower bound: an argsort counts as one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from mlx_tensorops import formats
from mlx_tensorops.plans import tile_count
from mlx_tensorops.policies import gateup, gather
from mlx_tensorops.policies import tile_plan as plan_table
from mlx_tensorops.primitives import _weighted
from mlx_tensorops.rules import rule
from mlx_tensorops.spec import WeightedSpec, WeightSpec

HALF_BYTES = 2


@dataclass(frozen=True)
class Model:
    """The experts of one layer: published shapes, and a format that the model is usually distributed in."""

    name: str
    experts: int
    top_k: int
    hidden: int
    width: int
    format: str
    bias: bool = False


MODELS = (
    Model("Qwen3-30B-A3B", 128, 8, 2048, 768, "affine4_g64"),
    Model("Qwen3-Next-80B-A3B", 512, 10, 2048, 512, "nvfp4"),
    Model("gpt-oss-20b", 32, 4, 2880, 2880, "mxfp4", bias=True),
)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Work:
    """What a layer costs.

    Attributes:
        launches: kernels that are enqueued.
        intermediate_bytes: arrays between the kernels, each counted once.
        x_bytes: activations that products load from device memory.
        w_bytes: packed weights that they load, without scales.
        macs: multiply-adds issued, padding included.
        barrier_arrivals: barriers, each counted for every simdgroup that waits there.
        wasted_fragments: operations of 16 rows (and 64 columns, all of K) that no row needs.
    """

    launches: int = 0
    intermediate_bytes: int = 0
    x_bytes: int = 0
    w_bytes: int = 0
    macs: int = 0
    barrier_arrivals: int = 0
    wasted_fragments: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))


NAMES = tuple(f.name for f in fields(Work))


@lru_cache(maxsize=None)
def counts_of(model: Model, tokens: int, seed: int = 7) -> tuple[int, ...]:
    """Rows of each expert: every token takes ``top_k`` different experts, of which some are liked better by all tokens."""
    return tuple(np.bincount(routing(model, tokens, seed).reshape(-1), minlength=model.experts).tolist())


def routing(model: Model, tokens: int, seed: int = 7) -> np.ndarray:
    """Expert ids ``[tokens, top_k]``."""
    rng = np.random.default_rng(seed)
    liked = rng.normal(size=model.experts)
    logits = liked * 0.7 + rng.gumbel(size=(tokens, model.experts))
    return np.argsort(-logits, axis=1)[:, : model.top_k].astype(np.int32)


def _blocks(n: int, size: int) -> int:
    return -(-n // size)


def code_bytes(model: Model, n: int, k: int) -> int:
    """Packed weights of one matrix."""
    return n * k * formats.by_name(model.format).bits // 8


# ---------------------------------------------------------------------------------------------------------------------------- floors

def floor(model: Model, counts) -> Work:
    """What no way of computing the layer can go below: each array of the layer's input once, each weight of an expert with rows once."""
    rows, used = sum(counts), sum(c > 0 for c in counts)
    h, i = model.hidden, model.width
    return Work(1, 0, (rows // model.top_k * h + rows * i) * HALF_BYTES, used * (2 * code_bytes(model, i, h) + code_bytes(model, h, i)), 3 * rows * h * i)


# ------------------------------------------------------------------------------------------------------------------------------- MLX

def mlx_layer(model: Model, counts) -> Work:
    """The layer of mlx-lm's ``SwitchGLU`` and the weighted sum that models do after it."""
    rows, h, i = sum(counts), model.hidden, model.width
    product = mlx_rows if rows // model.experts < 4 else mlx_grouped
    work = product(model, counts, i, h) + product(model, counts, i, h) + product(model, counts, h, i)
    # argsort, argsort, order // k, x[order], ids[order]; the activation; y[inverse]; times scores, sum over k
    sorting = Work(5, rows * (4 * 4 + h * HALF_BYTES))
    rest = Work(4, rows * (3 * i + 3 * h) * HALF_BYTES)  # gate, up and what joins them; down, un-sorted, weighted
    if model.bias:  # bias[ids], and the sum, for each of three products
        rest += Work(6, rows * 2 * (2 * i + h) * HALF_BYTES)
    return work + sorting + rest


def mlx_rows(model: Model, counts, n: int, k: int) -> Work:
    """``gather_qmv``: a row's product on its own; each simdgroup takes 4 columns, and reads x for them."""
    rows = sum(counts)
    return Work(1, 0, rows * k * _blocks(n, 4) * HALF_BYTES, rows * code_bytes(model, n, k), rows * n * k)


def mlx_grouped(model: Model, counts, n: int, k: int, block: int | None = None) -> Work:
    """``gather_qmm_rhs_nax``: 2x2 simdgroups share a block of 64 columns; x comes straight from device memory, to both that need it."""
    rows = sum(counts)
    block = block or (32 if rows // model.experts < 64 else 64)
    part, columns, steps = block // 2, _blocks(n, 64), _blocks(k, 64)
    loaded = issued = tiles = wasted = start = 0
    for count in counts:
        for first in range(0, count, block):
            tiles += 1
            here = min(block, count - first)
            for at in range(0, min(here, block), part):
                used = min(part, here - at)
                loaded += part if start + first + at + part <= rows else used  # whole parts where the array does not end
                issued += part
                wasted += part // 16 - _blocks(used, 16)
        start += count
    # the offsets of the runs are found by a kernel of their own, in every call
    return Work(2, 4 * model.experts, loaded * 2 * k * columns * HALF_BYTES, tiles * code_bytes(model, n, k), issued * 64 * columns * steps * 64,
                tiles * columns * (2 * steps + 1) * 4, wasted * columns)


# ------------------------------------------------------------------------------------------------------------------------------ ours

def our_layer(model: Model, counts) -> Work:
    """The layer of ``switch_glu``: plan, gate and up with their activation, down, weighted sum."""
    rows, h, i = sum(counts), model.hidden, model.width
    block_m = plan_table.block_m(rows, model.experts)
    tiles = tile_count(rows, model.experts, block_m)
    plan = Work(1, 4 * (3 * tiles + 2 * rows + 1))
    if not plan_table.in_one_launch(rows, model.experts):
        chunks = _blocks(rows, plan_table.chunk(rule(rows))(()))
        plan += Work(2, 4 * (rows + 2 * chunks * (model.experts + 1) + 2 * (model.experts + 2)))
    between = Work(1, rows * (i + h) * HALF_BYTES)  # the weighted sum; what the activation gives, and down
    return plan + our_product(model, counts, i, h, block_m, 2) + our_product(model, counts, h, i, block_m, 1) + between


@lru_cache(maxsize=None)
def entry_of(model: Model, block_m: int, tensors: int):
    """The kernel that policy takes for plans of this height."""
    scales = "bfloat16" if formats.by_name(model.format).scale == "float" else "uint8"
    op, table = (("gather_qmm", gather), ("gather_gateup", gateup))[tensors - 1]
    spec = WeightedSpec("bfloat16", "bfloat16", WeightSpec(model.format, "uint32", scales), rows="plan", destinations=tensors,
                        gate="swiglu" * (tensors - 1), block_m=block_m, op=op)
    return next(v for v in _weighted.rows(spec, "mpp", table.choose(spec, "mpp")) if v.layout == "nt" and v.alignment == "ragged")


def our_product(model: Model, counts, n: int, k: int, block_m: int, tensors: int) -> Work:
    """One launch over the plan's tiles, by the dataflow that policy takes for them."""
    v = entry_of(model, block_m, tensors)
    tile, rows = v.tile, sum(counts)
    tiles = sum(_blocks(c, block_m) for c in counts)
    codes = tiles * tensors * code_bytes(model, n, k)
    if v.dataflow == "vector":
        return Work(1, 0, rows * k * _blocks(n, tile.warp_n) * HALF_BYTES, codes, tensors * rows * n * k)
    columns, step = _blocks(n, tile.n), v.option("block_k", 32)
    steps = _blocks(k, step)
    in_fragments, one_by_one = rows_issued(v, counts)
    barriers = 1 + 2 * steps + (v.option("store", "scratch") == "scratch")  # the tile's row numbers, every step, the store
    return Work(1, 0, rows * k * columns * HALF_BYTES, codes, tensors * (in_fragments + one_by_one) * columns * tile.n * steps * step,
                tiles * columns * barriers * tile.simdgroups)


def rows_issued(v, counts) -> tuple[int, int]:
    """Rows that the matrix unit multiplies, whole fragments, and rows that are multiplied off it."""
    in_fragments = one_by_one = 0
    for count in counts:
        for first in range(0, count, v.tile.m):
            here = min(v.tile.m, count - first)
            last = (here - 1) % v.tile.op_m + 1  # rows of the last fragment
            off = last if last <= v.option("tail", 0) else 0
            in_fragments += _blocks(here - off, v.tile.op_m) * v.tile.op_m
            one_by_one += off
    return in_fragments, one_by_one


# ----------------------------------------------------------------------------------------------------------------------------- table

def losses(ours: Work, theirs: Work) -> list[str]:
    """Names of the counts where ours are higher."""
    return [name for name in NAMES if getattr(ours, name) > getattr(theirs, name)]


def table(model: Model, tokens) -> list[str]:
    """Lines for one model."""
    lines = [f"{model.name}: {model.experts} experts, {model.top_k} of them per token, hidden {model.hidden}, width {model.width}, {model.format}",
             f"{'T':>5} {'':<6}" + "".join(f"{name.replace('_', ' '):>20}" for name in NAMES)]
    for count in tokens:
        counts = counts_of(model, count)
        found = dict(MLX=mlx_layer(model, counts), ours=our_layer(model, counts), floor=floor(model, counts))
        for who, work in found.items():
            lines.append(f"{count if who == 'MLX' else '':>5} {who:<6}" + "".join(f"{getattr(work, name):>20,}" for name in NAMES))
        lost = losses(found["ours"], found["MLX"])
        lines.append(f"{'':>5} {'ratio':<6}" + "".join(f"{_ratio(found['MLX'], found['ours'], name):>20}" for name in NAMES)
                     + (f"   higher than MLX: {', '.join(lost)}" if lost else ""))
    return lines


def _ratio(theirs: Work, ours: Work, name: str) -> str:
    own = getattr(ours, name)
    return f"{getattr(theirs, name) / own:.2f}x less" if own else "-"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, metavar="T")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        from . import emulated_moe_check

        emulated_moe_check.main()
    print("counts by formula; bf16 activations, everything emulated")
    for model in MODELS:
        print(*table(model, options.tokens), "", sep="\n")


if __name__ == "__main__":
    main()
