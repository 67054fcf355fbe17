"""Tile plans composed of MLX operations: the same arrays where no kernel of ours can run. Nothing is evaluated."""

from __future__ import annotations


def from_ids(ids, num_experts: int, block_m: int) -> tuple:
    """The six arrays of the plan of an integer array of ids."""
    import mlx.core as mx

    ids = bounded(ids.reshape(-1), num_experts)
    rows = ids.size
    position = mx.arange(rows, dtype=mx.int32)
    bins = mx.where(ids < 0, num_experts, ids)
    # The row in the key makes all keys different, so that the order is the same whatever sort MLX takes.
    keys = mx.sort(bins.astype(mx.int64) * max(rows, 1) + position)
    order = (keys % max(rows, 1)).astype(mx.int32)
    inverse = mx.zeros((rows,), mx.int32)
    inverse = mx.put_along_axis(inverse, order, position, axis=0) if rows else inverse
    counts = mx.zeros((num_experts + 1,), mx.int32).at[bins].add(mx.ones((rows,), mx.int32))
    return (*_tiles(mx, counts, rows, block_m), order, inverse, counts[-1:])


def from_offsets(offsets, rows: int, block_m: int) -> tuple:
    """The six arrays of the plan of sorted rows; offsets that do not ascend within 0 .. rows are made to."""
    import mlx.core as mx

    inner = mx.cummax(mx.clip(offsets.astype(mx.int64), 0, rows).astype(mx.int32)[1:])
    ends = mx.concatenate([inner, mx.array([rows], mx.int32)])
    counts = ends - mx.concatenate([mx.zeros((1,), mx.int32), inner])
    order = mx.arange(rows, dtype=mx.int32)
    return (*_tiles(mx, counts, rows, block_m), order, order, counts[-1:])


def bounded(ids, num_experts: int):
    """Ids as int32, where those that name no expert are -1 (or any other negative number)."""
    import mlx.core as mx

    if ids.dtype in (mx.int64, mx.uint64, mx.uint32):
        ids = mx.where((ids >= 0) & (ids < num_experts), ids.astype(mx.int64), -1)
    ids = ids.astype(mx.int32)
    return mx.where(ids < num_experts, ids, -1)


def _tiles(mx, counts, rows: int, block_m: int) -> tuple:
    """Tiles of bins with so many rows each; the last bin is that of dropped rows."""
    bins = counts.size
    row_end = mx.cumsum(counts)
    tiles_of = (counts + (block_m - 1)) // block_m
    tile_end = mx.cumsum(tiles_of)
    tiles = -(-rows // block_m) + bins - 1
    tile = mx.arange(tiles, dtype=mx.int32)
    # A tile's bin: as many bins as end at or before it.
    ends = mx.zeros((tiles + 1,), mx.int32).at[tile_end].add(mx.ones((bins,), mx.int32))
    owner = mx.cumsum(ends)[:tiles]
    used, owner = owner < bins, mx.minimum(owner, bins - 1)
    start = (row_end - counts)[owner] + (tile - (tile_end - tiles_of)[owner]) * block_m
    count = mx.minimum(row_end[owner] - start, block_m)
    return (mx.where(used & (owner < bins - 1), owner, -1), mx.where(used, start, rows), mx.where(used, count, 0))
