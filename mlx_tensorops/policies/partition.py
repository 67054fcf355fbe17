"""How a block of C is divided among simdgroups, and which kind of instruction may compute it: pure functions of sizes.

The rules are those TileLang's Metal backend states for its lowering ("TileLang Metal Backend Internals", section 2.1). They
look at shapes and at what the target can do, never at arrays.
"""

from __future__ import annotations

from ..errors import RuleError, fail
from ..variant import SIMD_WIDTH, Tile

# Extents of one cooperative operation: of matmul2d's documented shapes the one that TileLang and MLX build everything from.
OP_M, OP_N, OP_K = 16, 32, 16

# Warp policies: (simdgroups along M, along N) -> may this partition be taken?
WARP_POLICIES = {
    "square": lambda along_m, along_n: True,
    "full_row": lambda along_m, along_n: along_n == 1,
    "full_column": lambda along_m, along_n: along_m == 1,
}


def partitions(m: int, n: int, warps: int, policy: str = "square") -> list[tuple[int, int]]:
    """Every (simdgroups along M, along N) that divides an ``m`` x ``n`` block into whole operations."""
    if policy not in WARP_POLICIES:
        fail("partition", f"warp policy {policy!r} is unknown", nearest=", ".join(WARP_POLICIES), cls=RuleError)
    found = []
    for along_m in range(1, warps + 1):
        along_n = warps // along_m
        whole = along_m * along_n == warps and m % (along_m * OP_M) == 0 and n % (along_n * OP_N) == 0
        if whole and WARP_POLICIES[policy](along_m, along_n):
            found.append((along_m, along_n))
    return found


def warp_partition(m: int, n: int, warps: int, policy: str = "square") -> tuple[int, int] | None:
    """The legal partition whose simdgroups own the most balanced grid of operations, or None.

    Balanced: as many operations along M as along N. Among equally balanced ones a simdgroup's part with the smaller
    circumference wins: it loads the fewest elements per step of K.
    """

    def imbalance(partition):
        part_m, part_n = m // partition[0], n // partition[1]
        return abs(part_m // OP_M - part_n // OP_N), part_m + part_n

    return min(partitions(m, n, warps, policy), key=imbalance, default=None)


def can_use_cooperative_tensor(m: int, n: int, k: int, threads: int, policy: str = "square") -> bool:
    """Whether a block of ``m`` x ``n`` with steps of ``k`` divides into whole operations of whole simdgroups."""
    if threads % SIMD_WIDTH or m % OP_M or n % OP_N or k % OP_K:
        return False
    return warp_partition(m, n, threads // SIMD_WIDTH, policy) is not None


def instruction(keys: tuple[str, ...], m: int, n: int, k: int, threads: int, policy: str = "square") -> str:
    """Stage 1: the engine whose instruction computes a block; the fallback never fails.

    Args:
        keys: what the target can do, from ``select.target_keys``.
    """
    return "mpp" if "metal4" in keys and can_use_cooperative_tensor(m, n, k, threads, policy) else "simdgroup"


def dataflow(engine: str, *, shared: bool) -> str:
    """Stage 2: where operands come from. ``shared``: staging carries meaning (a layout change, edge fill, several readers)."""
    return "staged" if shared else {"mpp": "direct", "simdgroup": "registers"}[engine]


def cooperative_tile(m: int, n: int, warps: int, policy: str = "square") -> Tile:
    """The tile of an ``m`` x ``n`` block for ``warps`` simdgroups, partitioned by :func:`warp_partition`."""
    chosen = warp_partition(m, n, warps, policy)
    if chosen is None:
        fail("partition", f"{warps} simdgroups cannot share a {m}x{n} block of {OP_M}x{OP_N} operations under policy {policy!r}",
             instead="another number of simdgroups", cls=RuleError)
    return Tile(m, n, *chosen, OP_M, OP_N, OP_K)
