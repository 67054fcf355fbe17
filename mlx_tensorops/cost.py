"""What one launch of a variant does, as rules over its inputs: the numbers explain() prints and counters confirm."""

from __future__ import annotations

from dataclasses import dataclass

from .rules import Rule, rule


@dataclass(frozen=True)
class Cost:
    """Work and traffic of one launch.

    Attributes:
        macs: multiply-adds issued, padding included.
        matmul2d: matrix operations issued, one per simdgroup and step.
        operand_bytes: bytes loaded from device memory per input, in order; exact where every size is a multiple of the block.
        output_bytes: bytes stored.
        accumulator_words: 32-bit registers per lane that hold the output fragments.
        operand_words: 32-bit registers per lane that hold operand fragments at the same time.
        barriers: threadgroup barriers, each counted once per threadgroup.
        mma8x8: multiplications of 8x8 simdgroup matrices issued.
        opaque: the operands are read inside matmul2d: operand_bytes counts every element of a step once, which hardware may exceed.
        threadgroup_load, threadgroup_store: bytes read from and written to threadgroup memory; exact like operand_bytes.
    """

    macs: Rule
    matmul2d: Rule
    operand_bytes: tuple[Rule, ...]
    output_bytes: Rule
    accumulator_words: int
    operand_words: int
    barriers: Rule = rule(0)
    mma8x8: Rule = rule(0)
    opaque: bool = False
    threadgroup_load: Rule = rule(0)
    threadgroup_store: Rule = rule(0)

    @property
    def bytes_moved(self) -> Rule:
        """Bytes through every level: device memory, and threadgroup memory in both directions.

        Staging is no free cache: threadgroup memory and registers share one on-chip budget, and what is staged is stored
        and loaded again. Device bytes alone would prefer it; the four shapes TileLang's authors measured on an M5 do not.
        """
        total = self.output_bytes + self.threadgroup_load + self.threadgroup_store
        for operand in self.operand_bytes:
            total = total + operand
        return total
