"""spec + context -> Decision: which engine answers, why, and why not each of the others.

This is code-generation time: nothing is compiled, no array is touched. Cached per (spec, context).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Mapping

from . import config, policy, registry, select
from .device import DeviceProfile
from .errors import EngineError, fail
from .select import Context, Verdict
from .variant import VariantSet


@dataclass(frozen=True)
class Decision:
    """The answer for one problem on one machine.

    Attributes:
        engine: the engine that answers.
        why: why it was taken.
        verdicts: legality of every engine, with reasons.
        variants: the rows of our kernel, or None for engines without one.
        source: (dataflow, tile) -> where it comes from.
        context: the machine.
    """

    spec: Any
    engine: str
    why: str
    verdicts: Mapping[str, Verdict]
    variants: VariantSet | None
    source: Mapping[tuple, str]
    context: Context


def resolve(family_name: str, spec: Any, engine: str, context: Context) -> Decision:
    """Choose the engine and the variants for a spec.

    Raises:
        EngineError: the named engine does not exist, or cannot run this spec here; all reasons are told.
    """
    return _resolved(family_name, spec, engine, context, config.get("MLX_TENSOROPS_ENGINE"))


@lru_cache(maxsize=4096)
def _resolved(family_name: str, spec: Any, engine: str, context: Context, forced: str) -> Decision:
    family = registry.family(family_name)
    select.check_name(spec.op, engine)
    verdicts = {e: select.check(family, spec, e, context) for e in select.ENGINES}
    chosen, why = _choose(family, spec, engine, context, verdicts, forced)
    if not any(e == chosen for e, _ in family.templates):
        return Decision(spec, chosen, why, verdicts, None, {}, context)
    entries = tile_entries(family, spec, chosen, context.device)
    rows = family.rows(spec, chosen, entries)
    return Decision(spec, chosen, why, verdicts, VariantSet(spec, chosen, rows), _source(rows, entries), context)


def _source(rows, entries) -> dict[tuple, str]:
    """Why each tile of a set is taken: entries may share a tile and differ in options, and some refuse the spec."""
    return {(v.dataflow, v.tile): next(e.why for e in entries if (e.dataflow, e.tile) == (v.dataflow, v.tile) and set(e.options) <= set(v.options)) for v in rows}


def tile_entries(family, spec, engine: str, device: DeviceProfile | None = None):
    """The policy entries of a family for a spec on one of our engines; without a device, for one of which nothing special is known."""
    return importlib.import_module(f"{__package__}.policies.{family.name}").choose(spec, engine, device)


def _choose(family, spec, engine: str, context: Context, verdicts, forced: str) -> tuple[str, str]:
    if engine == "auto" and forced != "auto":
        select.check_name(spec.op, forced, "MLX_TENSOROPS_ENGINE =")
        if verdicts[forced].ok:
            return forced, "MLX_TENSOROPS_ENGINE asks for it"
    elif engine != "auto":
        if not verdicts[engine].ok:
            legal = [e for e in select.ENGINES if verdicts[e].ok]
            fail(spec.op, f"engine {engine!r} cannot run this here: {verdicts[engine].reason}",
                 nearest=", ".join(legal), instead='engine="auto" takes the best legal one', cls=EngineError)
        return engine, "named by the caller"
    for candidate, why in policy.order(context.device, mlx_has_it=spec.mlx_has_it, family=family.name):
        if verdicts[candidate].ok:
            return candidate, why
    return "mlx", "no other engine is legal"
