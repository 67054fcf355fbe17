"""After an installation: the package imports, carries its data, and its extension fits the installed MLX."""

import sys
from pathlib import Path

import mlx_tensorops
from mlx_tensorops import registry
from mlx_tensorops.primitives import _native


def missing(package: Path) -> list[Path]:
    """Files that the package reads at run time and that are not there."""
    templates = {name for family in registry.families().values() for name in family.templates.values()}
    wanted = [*(package / "shaders" / name for name in sorted(templates)),
              package / "hostmetal/include/metal_stdlib", package / "hostmetal/runtime/hm_abi.h"]
    return [path for path in wanted if not path.is_file()]


if __name__ == "__main__":
    ok, text = _native.status()
    absent = missing(Path(mlx_tensorops.__file__).parent)
    print(f"mlx_tensorops {mlx_tensorops.__version__} from {mlx_tensorops.__file__}\n{text}")
    print("\n".join(f"missing: {path}" for path in absent) or "all data files are there")
    sys.exit(0 if ok and not absent else 1)
