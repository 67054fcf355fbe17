"""Writes docs/kernels.md from the table of Butter's kernels: python -m tools.kernel_table"""

from __future__ import annotations

from pathlib import Path

from mlx_tensorops.policies import butter

PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
TEXT = """# Fifteen hand-written kernels, generated

Butter ships fifteen Metal kernels that were written or patched by hand. Each is a variant here: one row of `mlx_tensorops/policies/butter.py`,
run in the emulator by `tests/moe/test_butter.py` against float64, on two lane layouts, in the checked build. Nothing of Butter's text is
used; blocks, operations and row sources are those that it publishes. What `auto` and the named engines take instead stands in the last column.

{table}

Written by `python -m tools.kernel_table`; edit the table, not this page.
"""


def page() -> str:
    """The page's text."""
    return TEXT.format(table=butter.table())


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
