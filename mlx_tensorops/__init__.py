"""Matrix kernels that MLX lacks: Metal 4 cooperative-tensor GEMMs, generated, guarded and explained.

    import mlx_tensorops as mt
    c = mt.matmul(a, b)
    print(mt.explain("matmul", a, b))

Nothing is created at import. Names are looked up when they are first used, so that importing the package
costs neither numpy nor a template engine.
"""

from __future__ import annotations

import importlib
import pkgutil

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
    "formats": "formats",
    "register_format": "formats:register_format",
    "hostmetal": "hostmetal",
}

_ERRORS = ("DTypeError", "EngineError", "NativeError", "RuleError", "ShapeError", "TensorOpsError")


_SUBMODULES = frozenset(info.name for info in pkgutil.iter_modules(__path__))


def _public() -> dict[str, str]:
    return {**_LAZY, **importlib.import_module(".registry", __name__).public_names()}


def __getattr__(name: str):
    where = _LAZY.get(name)
    # "from . import x" asks here for x before it imports the submodule: answer at once, or families would be
    # discovered in the middle of their own import.
    if where is None and not name.startswith("__") and name not in _SUBMODULES:
        where = _public().get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = where.partition(":")
    loaded = importlib.import_module(f".{module}", __name__)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value  # the next access is an ordinary one
    return value


def __dir__():
    return sorted({*_public(), *_ERRORS, "__version__"})
