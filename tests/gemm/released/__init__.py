"""The last release's rendered sources, one full file per dataflow for a float and a half C, and how they are written.

``python -m tests.gemm.released`` writes them; run it when a version is released. Within a version they are golden files: a
change of a template shows as a diff to be read. Between versions, old and new are executed side by side.
"""

from __future__ import annotations

from pathlib import Path

from mlx_tensorops.policies import gemm as table
from mlx_tensorops.primitives import gemm
from mlx_tensorops.shaders.render import render
from mlx_tensorops.spec import GemmSpec
from mlx_tensorops.variant import Variant
from mlx_tensorops.version import __version__

FOLDER = Path(__file__).parent
VERSION = FOLDER / "VERSION"

# Kernel file -> why its results are not bit-equal to the last release's. Empty it when a version is released.
REASONS: dict[str, str] = {}


def chosen() -> dict[str, Variant]:
    """File name -> variant: each dataflow with the tile that serves every size, its most general row, half operands."""
    found: dict[str, Variant] = {}
    for entry in sorted(table.tables(), key=lambda e: e.size != ""):
        for out in ("float16", "float32"):
            name = f"{entry.engine}_{entry.dataflow}_{out}.metal"
            spec = GemmSpec("float16", "float16", out)
            if name in found or gemm.refusals(spec, entry.engine, entry.dataflow, entry.tile, dict(entry.options)):
                continue
            rows = gemm.rows_of(spec, entry.engine, entry.dataflow, entry.tile, options=dict(entry.options))
            found[name] = next((v for v in rows if v.row in ("nn/ragged", "strided/ragged")), rows[-1])
    return found


def write() -> None:
    """Replace the fixtures by what is rendered now."""
    for old in FOLDER.glob("*.metal"):
        old.unlink()
    for name, variant in chosen().items():
        (FOLDER / name).write_text(render(variant).text, encoding="ascii")
    VERSION.write_text(__version__ + "\n")
