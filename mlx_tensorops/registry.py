"""Kernel families by name. A family is found by being a module of ``primitives`` that has a FAMILY."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Mapping, Sequence

from .errors import TensorOpsError, fail


@dataclass(frozen=True)
class Family:
    """One kernel family: what it answers, which kernels it has, what each of them needs.

    Attributes:
        name: family name; also the stem of its templates.
        op: public operation in error messages.
        spec: the frozen problem class.
        templates: (engine, dataflow) -> template file.
        legal: (spec, engine) -> reasons why the engine cannot run the spec; empty where it can.
        rows: (spec, engine, policy entries) -> the variants of one set, in the order in which they are tried.
        signature: variant -> Signature.
        context: variant -> further values its template may name.
        cost: variant -> Cost, rules for what one launch does.
        variants: () -> every variant policy can reach; what tests, lint and the manifest walk.
        gradient: vjp rule (variant, primals, cotangents, argnums) -> gradients, or None.
        work: (spec, shapes that ``describe`` gave) -> (flops, bytes): the problem itself, each array counted once.
        describe: public operation -> "module:attribute" of (*arrays, **options) -> (decision, shapes), what explain() shows.
        fast_route: whether mx.fast.metal_kernel can carry its kernels where no extension fits the installed MLX.
        public: name -> "module:attribute" of what the package exports for this family.
        seen: (variant, those shapes) -> shapes of the kernel's inputs; the same where a described call gives them as they are.
    """

    name: str
    op: str
    spec: type
    templates: Mapping[tuple[str, str], str]
    legal: Callable[[Any, str], Sequence[str]]
    rows: Callable[[Any, str, Any], tuple]
    signature: Callable[[Any], Any]
    context: Callable[[Any], dict]
    cost: Callable[[Any], Any]
    variants: Callable[[], tuple]
    gradient: Callable | None
    work: Callable[[Any, Sequence[tuple]], tuple[int, int]]
    describe: Mapping[str, str]
    fast_route: bool
    public: Mapping[str, str]
    seen: Callable[[Any, Sequence[tuple]], list[tuple]] = lambda variant, shapes: [tuple(s) for s in shapes]


@lru_cache(maxsize=None)
def families() -> Mapping[str, Family]:
    """Every family, by name."""
    from . import primitives

    found = {}
    for info in sorted(pkgutil.iter_modules(primitives.__path__), key=lambda m: m.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{primitives.__name__}.{info.name}")
        family = getattr(module, "FAMILY", None)
        if family is not None:
            found[family.name] = family
    return found


def family(name: str) -> Family:
    """The family of that name, or an error that lists the known ones."""
    found = families().get(name)
    if found is None:
        fail("registry", f"no kernel family is called {name!r}", nearest=", ".join(families()), cls=TensorOpsError)
    return found


def load(where: str) -> Any:
    """The object a "module:attribute" text names; modules are relative to the package."""
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), attribute)


def by_op(op: str) -> Family:
    """The family that answers a public operation, or an error that lists the known ones."""
    for candidate in families().values():
        if isinstance(op, str) and op in candidate.describe:
            return candidate
    fail("registry", f"no operation is called {op!r}", nearest=", ".join(name for f in families().values() for name in f.describe))


def public_names() -> dict[str, str]:
    """Every name the families export -> "module:attribute"."""
    return {name: where for f in families().values() for name, where in f.public.items()}
