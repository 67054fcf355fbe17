"""explain(): which engine answers a call, with which tile, why not the others, and where the roofline is."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from . import registry
from .device import DeviceProfile
from .select import ENGINES, Verdict


@dataclass(frozen=True)
class Explanation:
    """What a call would do. ``print`` it, or read the fields.

    Attributes:
        op, engine, why: the operation, the engine that answers, and why it was taken.
        verdicts: engine -> whether it is legal, and the reasons.
        device: profile of the machine the call would run on.
        variant: key of the kernel that row-contiguous operands would take; "" for engines without one.
        tile: its tile, and the source of that choice.
        flops: of the problem: 2·M·N·K·batch for a product.
        bytes: operands and result, each counted once.
        predicted: what the kernel does by its cost rules: matmul2d, mma8x8, macs, bytes, barriers, registers.
        seconds: roofline bound of the device, or None where its peaks are not published.
        bound: "compute" or "memory": which of the two it is.
    """

    op: str
    engine: str
    why: str
    verdicts: Mapping[str, Verdict]
    device: DeviceProfile
    variant: str
    tile: str
    flops: int
    bytes: int
    predicted: Mapping[str, Any]
    seconds: float | None
    bound: str

    def __str__(self) -> str:
        lines = [f"{self.op}: engine {self.engine}: {self.why}", f"  device   {self.device.name} ({self.device.backend})"]
        if self.variant:
            lines += [f"  variant  {self.variant}", f"  tile     {self.tile}"]
            lines += [f"  predicts {name} = {value}" for name, value in self.predicted.items()]
        lines.append(f"  work     {self.flops:,} flop, {self.bytes:,} bytes: {self.flops / max(self.bytes, 1):.1f} flop per byte")
        if self.seconds is None:
            lines.append("  roofline unknown: no published peak for this device")
        else:
            lines.append(f"  roofline {self.seconds * 1e6:.1f} us, bound by {self.bound} ({self.device.source})")
        lines.append("  engines")
        lines += [f"    {e:<9} {'ok ' if v.ok else 'no '} {v.reason}" for e, v in self.verdicts.items()]
        return "\n".join(lines)


def explain(op: str, *arrays, **options) -> Explanation:
    """What the public operation ``op`` would do with these arrays and options. Runs nothing.

    Args:
        op: name of a public operation, e.g. "matmul".
        arrays, options: as for the operation itself.

    Raises:
        TensorOpsError: the operation does not exist, or the call is refused for the same reason as there.
        TypeError: an argument is missing or unknown, as there.
    """
    from . import device, signature

    family, decision, shapes = _described(op, arrays, options)
    profile = device.of_stream(options.get("stream"))
    flops, size = family.work(decision.spec, shapes)
    seconds, bound = _roofline(profile, flops, size)
    variant, tile, predicted = "", "", {}
    if decision.variants is not None:
        row = _row_for_contiguous(family, decision.variants, shapes)
        shapes = family.seen(row, shapes)
        variant, tile = row.key, f"{row.tile.name}: {decision.source[row.dataflow, row.tile]}"
        predicted = _predicted(family.cost(row), signature.of(row), shapes)
    return Explanation(op, decision.engine, decision.why, {e: decision.verdicts[e] for e in ENGINES}, profile, variant, tile,
                       flops, size, predicted, seconds, bound)


def dump_source(op: str, *arrays, path=None, **options) -> str:
    """Metal source of the kernel the call would launch if its operands were row-contiguous.

    Args:
        op, arrays, options: as for :func:`explain`; name ``engine="mpp"`` inside ``device.force(...)`` or
            ``hostmetal.active()`` to read a kernel that this machine would not choose.
        path: file to write the text to, as well.

    Returns:
        The text; "" for an engine without a kernel of ours.
    """
    from .shaders.render import render

    family, decision, shapes = _described(op, arrays, options)
    if decision.variants is None:
        return ""
    text = render(_row_for_contiguous(family, decision.variants, shapes)).text
    if path is not None:
        Path(path).write_text(text, encoding="ascii")
    return text


def _described(op: str, arrays: tuple, options: Mapping[str, Any]) -> tuple:
    """(family, decision, shapes) of a call; arguments that do not fit are told in the words of the public operation."""
    from . import device

    family = registry.by_op(op)
    try:
        inspect.signature(registry.load(family.public[op])).bind(*arrays, **options)
    except TypeError as wrong:
        raise TypeError(f"{op}() {wrong}") from None
    device.is_gpu(options.get("stream"))  # refuses what is no stream, as the call does
    return family, *registry.load(family.describe[op])(*arrays, **options)


def _row_for_contiguous(family, variants, shapes):
    from . import signature

    seen = family.seen(variants.rows[0], shapes)
    for variant in variants.rows:
        if signature.of(variant).when(seen, _contiguous(seen), [0] * len(seen)):
            return variant
    return variants.rows[-1]


def _contiguous(shapes):
    """Strides of row-contiguous arrays."""
    return [tuple(math.prod(s[i + 1:]) for i in range(len(s))) for s in shapes]


def _roofline(profile: DeviceProfile, flops: int, size: int) -> tuple[float | None, str]:
    if profile.bandwidth is None or profile.half_flops is None:
        return None, ""
    compute, memory = flops / profile.half_flops, size / profile.bandwidth
    return max(compute, memory), "compute" if compute >= memory else "memory"


def _predicted(cost, sign, shapes) -> dict:
    strides = _contiguous(shapes)
    return {
        "matmul2d": cost.matmul2d(shapes, strides),
        "mma8x8": cost.mma8x8(shapes, strides),
        "macs": cost.macs(shapes, strides),
        "operand_bytes": tuple(rule(shapes, strides) for rule in cost.operand_bytes),
        "output_bytes": cost.output_bytes(shapes, strides),
        "bytes_moved": cost.bytes_moved(shapes, strides),
        "accumulator_words": cost.accumulator_words,
        "operand_words": cost.operand_words,
        "barriers": cost.barriers(shapes, strides),
        "threadgroup_bytes": sign.threadgroup_bytes,
        "threadgroup_load": cost.threadgroup_load(shapes, strides),
        "threadgroup_store": cost.threadgroup_store(shapes, strides),
    }
