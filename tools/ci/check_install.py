"""After an installation: the package imports, and its extension fits the installed MLX."""

import sys

import mlx_tensorops
from mlx_tensorops.primitives import _native

if __name__ == "__main__":
    ok, text = _native.status()
    print(f"mlx_tensorops {mlx_tensorops.__version__} from {mlx_tensorops.__file__}\n{text}")
    sys.exit(0 if ok else 1)
