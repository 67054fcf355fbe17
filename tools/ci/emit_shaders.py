"""Write the Metal source of every variant of every family, and the language version each needs.

    python tools/ci/emit_shaders.py FOLDER      FOLDER/<kernel>.metal and FOLDER/index.tsv (version, file)
"""

import sys
from pathlib import Path

from mlx_tensorops import manifests, registry
from mlx_tensorops.shaders.render import render


def emit(folder: Path) -> list[tuple[str, str]]:
    """(Metal version, file name) of every variant, all written."""
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for family in registry.families().values():
        for variant in family.variants():
            source = render(variant)
            name = f"{source.kernel}.metal"
            (folder / name).write_text(source.text, encoding="ascii")
            index.append((manifests.REQUIRES[variant.engine]["metal"], name))
    (folder / "index.tsv").write_text("".join(f"{version}\t{name}\n" for version, name in index))
    return index


if __name__ == "__main__":
    index = emit(Path(sys.argv[1]))
    print(f"{len(index)} shaders in {sys.argv[1]}")
    sys.exit(0 if index else 1)
