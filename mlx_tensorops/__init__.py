"""Matrix kernels that MLX lacks: Metal 4 cooperative-tensor GEMMs, generated, guarded and explained.

    import mlx_tensorops as mt
    c = mt.matmul(a, b)
    print(mt.explain("matmul", a, b))

Nothing is created at import. Names are looked up when they are first used, so that importing the package
costs neither numpy nor a template engine.
"""

from __future__ import annotations

import importlib

from .errors import DTypeError, EngineError, NativeError, RuleError, ShapeError, TensorOpsError
from .version import __version__

# Name -> "module:attribute", or the module itself. A module never has the name of a function in it: importing it
# would put the module where the function should be. Names of the kernel families are found by discovery.
_LAZY = {
    "explain": "explanation:explain",
    "dump_source": "explanation:dump_source",
    "doctor": "diagnosis:doctor",
    "manifest": "manifests:manifest",
    "trace": "tracing:trace",
    "hostmetal": "hostmetal",
}

_ERRORS = ("DTypeError", "EngineError", "NativeError", "RuleError", "ShapeError", "TensorOpsError")


def _public() -> dict[str, str]:
    from . import registry

    return {**_LAZY, **registry.public_names()}


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    where = _LAZY.get(name) or _public().get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = where.partition(":")
    loaded = importlib.import_module(f".{module}", __name__)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value  # the next access is an ordinary one
    return value


def __dir__():
    return sorted({*_public(), *_ERRORS, "__version__"})
