"""``hostmetal.active()``: inside it, kernels of this package that are written in MSL run in the emulator."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from .. import config
from ..errors import fail
from . import build, cache
from .options import Options


@dataclass(frozen=True)
class Active:
    """One choice of build and options. Equal choices are equal, and share one launcher."""

    checked: bool = False
    options: Options = Options(isolate=False)
    sdk: str = "26.4"
    dialect: str = "4.0"

    @property
    def layout(self) -> str:
        return self.options.layout

    def key(self) -> tuple:
        return (self.checked, self.options, self.sdk, self.dialect)

    def options_bytes(self) -> bytes:
        """``hm_options`` of runtime/hm_abi.h."""
        return bytes(self.options.struct(checked=self.checked))

    def dispatch_address(self) -> int:
        """Address of ``hm_dispatch``."""
        return ctypes.cast(cache.load(cache.runtime_path()).hm_dispatch, ctypes.c_void_p).value

    def prepare(self, source: str, kernel: str) -> int:
        """Compiles a kernel (or finds it in the cache) and returns the address of its entry."""
        built = build.build(source, kernel, checked=self.checked, sdk=self.sdk, dialect=self.dialect, family=family_of(kernel), name=f"{kernel}.metal")
        return build.load(built)[0]

    def launcher(self) -> Any:
        """What the compiled extension calls: one per choice."""
        return _launcher(self)


def family_of(kernel: str) -> str:
    """The kernel family in a name of this package: what stands before the engine."""
    return re.split("_(?:mpp|simdgroup)_", kernel)[0]


@functools.lru_cache(maxsize=64)
def _launcher(active: Active) -> Any:
    from ..primitives import _native

    return _native.ext().HostLauncher(active.dispatch_address(), active.options_bytes(), active.prepare)


_interned: dict[Active, Active] = {}  # equal choices are the same object, so that callers may compare identities
_current: contextvars.ContextVar[Active | None] = contextvars.ContextVar("hostmetal_active", default=None)
config.contexts.append(_current)


def current() -> Active | None:
    """The innermost ``active()`` of this thread, or None."""
    return _current.get()


@contextlib.contextmanager
def active(layout: str = "nax", checked: bool = False, *, sdk: str = "26.4", dialect: str = "4.0", **options: Any) -> Iterator[Active]:
    """Emulation for the calls made inside: ``with hostmetal.active(checked=True): mt.matmul(a, b, engine="mpp")``.

    ``options`` are fields of :class:`Options`. Dispatches run in this process (``isolate=False``) unless asked
    otherwise: a fault still becomes a finding, raised when the array is evaluated.
    """
    known = {f.name for f in fields(Options)}
    for name in options:
        if name not in known:
            fail("hostmetal", f"{name}= is no option of active()", nearest=", ".join(sorted(known)))
    chosen = Active(checked, Options(**{"isolate": False, "layout": layout, **options}), sdk, dialect)
    chosen = _interned.setdefault(chosen, chosen)
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)
