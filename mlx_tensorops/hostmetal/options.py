"""How a dispatch runs: layout, adversary switches, order, limits. None of them needs another compile."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import fail
from . import abi


@dataclass(frozen=True)
class Options:
    """Every choice that is made at dispatch time.

    ``layout``: lane map of cooperative tensors: "nax" (M5-class), "strict" (older GPUs, exact f32),
    "permuted" or "padded" (arbitrary legal ones drawn from ``layout_seed``; padded has slots that are no element).
    ``truncate_f32``: f32 operands with relaxed precision keep 11 significant bits.
    ``flush_half``: half subnormals are read as zero.
    ``multiply_accumulates``: ``mode::multiply`` adds to the destination.
    ``order_seed``: 0 runs threadgroups and threads in index order; other values draw an order, and let atomics interleave.
    ``isolate``: run in a child process. ``timeout``: seconds.
    """

    layout: str = "nax"
    layout_seed: int = 0
    order_seed: int = 0
    truncate_f32: bool = False
    flush_half: bool = False
    multiply_accumulates: bool = False
    isolate: bool = True
    timeout: float = 60.0
    threadgroup_limit: int = 32768
    max_findings: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.layout, str) or self.layout not in abi.LAYOUTS:
            fail("hostmetal", f"layout={self.layout!r} is unknown", nearest=", ".join(abi.LAYOUTS))
        for name in ("layout_seed", "order_seed", "threadgroup_limit", "max_findings"):
            if not isinstance(getattr(self, name), int):
                fail("hostmetal", f"{name}={getattr(self, name)!r}", nearest="a whole number")
        if not isinstance(self.timeout, (int, float)) or not 0 < self.timeout <= 86400:
            fail("hostmetal", f"timeout={self.timeout!r} seconds", nearest="more than 0, at most 86400")

    def struct(self, *, checked: bool) -> abi.Options:
        flags = abi.CHECKED if checked else 0
        for bit, on in (
            (abi.ISOLATED, self.isolate),
            (abi.TRUNCATE_F32, self.truncate_f32),
            (abi.FLUSH_HALF, self.flush_half),
            (abi.MULTIPLY_ACCUMULATES, self.multiply_accumulates),
        ):
            flags |= bit if on else 0
        mask = (1 << 64) - 1
        return abi.Options(abi.VERSION, flags, abi.LAYOUTS[self.layout], self.threadgroup_limit, self.layout_seed & mask, self.order_seed & mask,
                           max(1, round(self.timeout * 1000)), self.max_findings)
