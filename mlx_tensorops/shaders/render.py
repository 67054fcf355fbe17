"""Variant -> shader text. Values become named constants at the top; the arithmetic stays in Python."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .. import config, registry, signature
from ..dtypes import element_type
from ..epilogues import ACTIVATIONS
from ..errors import fail
from ..variant import Variant
from . import msl

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Source:
    """Rendered shader.

    Attributes:
        text: Metal source, pure ASCII.
        kernel: name of the kernel function in it.
        digest: SHA-256 of everything but the kernel's name, in hexadecimal.
    """

    text: str
    kernel: str
    digest: str


@lru_cache(maxsize=1)
def _environment():
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, auto_reload=False,
    )
    environment.filters["msl"] = msl.literal
    return environment


@lru_cache(maxsize=None)
def render(variant: Variant) -> Source:
    """The shader of a variant for the C++ route."""
    unnamed = _text(variant, msl.kernel_head("KERNEL", signature.of(variant)))
    digest = hashlib.sha256(unnamed.encode("ascii")).hexdigest()
    kernel = f"{variant.key}_{digest[:8]}"
    source = Source(unnamed.replace("KERNEL", kernel), kernel, digest)
    _dump(variant, source)
    return source


@dataclass(frozen=True)
class FastSource:
    """The same kernel for ``mx.fast.metal_kernel``, which writes the argument list itself."""

    header: str
    body: str
    kernel: str


_SEAM = "\n// kernel\n"


@lru_cache(maxsize=None)
def render_fast(variant: Variant) -> FastSource:
    """The shader of a variant for the ``mx.fast.metal_kernel`` route."""
    header, body = _text(variant, _SEAM + msl.fast_kernel_prologue(signature.of(variant))).split(_SEAM)
    return FastSource(header, body.rstrip().removesuffix("}"), render(variant).kernel)


def _text(variant: Variant, kernel_head: str) -> str:
    family = registry.family(variant.family)
    template = _environment().get_template(family.templates[variant.engine, variant.dataflow])
    return template.render(context(variant, kernel_head))


def context(variant: Variant, kernel_head: str) -> dict:
    """What a template may name: everything a function of the variant."""
    sign = signature.of(variant)
    common = dict(title=_title(variant, sign), params_struct=msl.params_struct(sign), kernel_head=kernel_head, tile=variant.tile)
    matrix = _matrix_context(variant) if variant.matrix else {}
    return common | matrix | registry.family(variant.family).context(variant)


def _matrix_context(variant: Variant) -> dict:
    """What every kernel that multiplies matrices may name."""
    types = [element_type(t) for t in variant.types]
    tile, epilogue = variant.tile, variant.epilogue
    strided = variant.layout == "strided"
    transpose_left, transpose_right = (False, False) if strided else (side == "t" for side in variant.layout)
    swizzle, panel = variant.option("swizzle", 0), variant.option("panel", 0)
    return dict(
        a=types[0], b=types[1], c=types[-1],
        ragged_m=variant.alignment != "aligned",
        ragged_n=variant.alignment == "ragged",
        ragged_k=variant.alignment == "ragged",
        leave_together=False,  # whether simdgroups wait for each other, so that only whole threadgroups may return early
        offset_type="long" if strided else "int",
        descriptor=msl.descriptor(m=tile.op_m, n=tile.op_n, k=tile.op_k, transpose_left=transpose_left,
                                  transpose_right=transpose_right, relaxed_precision=variant.relaxed),
        fragments_m=range(tile.fragments_m), fragments_n=range(tile.fragments_n),
        transpose_left=transpose_left, transpose_right=transpose_right,
        left_k_coordinate=1 if transpose_left else 0,
        right_k_coordinate=0 if transpose_right else 1,
        a_m="1" if transpose_left else "p.a_m",
        a_k="p.a_k" if strided or transpose_left else "1",
        b_k="1" if transpose_right else "p.b_k",
        b_n="p.b_n" if strided or transpose_right else "1",
        batched=variant.batched,
        epilogue=epilogue,
        epilogue_text=_epilogue_text(epilogue),
        epilogue_operands=[(b.name, b.element) for b in signature.of(variant).buffers if b.name in epilogue.operands],
        activation=ACTIVATIONS[epilogue.activation].msl if epilogue.activation else "",
        swizzle=swizzle, panel=panel,
        raster_text=f"groups of {2**swizzle} rows, as MLX walks" if swizzle else f"panels of {panel} rows" if panel else "the grid as it is",
    )


def _epilogue_text(epilogue) -> str:
    """The formula, for the comment on top of it."""
    inner = "alpha * x" if epilogue.scaled else "x"
    inner += " + bias" if epilogue.bias else ""
    inner = f"{epilogue.activation}({inner})" if epilogue.activation else inner
    return inner + (" + beta * residual" if epilogue.scaled and epilogue.residual else " + residual" if epilogue.residual else "")


def _title(variant: Variant, sign) -> str:
    """The comment block on top: what this file is and what its caller guarantees."""
    lines = [
        f"{variant.family}, engine {variant.engine}, dataflow {variant.dataflow}, row {variant.row}",
        f"variant {variant.key}",
        "",
        "The host guarantees, before this kernel is enqueued:",
    ]
    lines += [f"- {check.message}" for check in sign.checks]
    lines.append(f"- layout: {sign.when.program()}")
    lines.append(f"- {sign.threads} threads per threadgroup: {variant.tile.simdgroups} simdgroups of 32")
    lines.append("Generated; edit the template, not this file.")
    return "\n".join(f"// {line}".rstrip() for line in lines)


def _dump(variant: Variant, source: Source) -> None:
    folder = config.get("MLX_TENSOROPS_DUMP")
    if folder:
        from .. import manifests

        try:
            os.makedirs(folder, exist_ok=True)
            Path(folder, f"{source.kernel}.metal").write_text(source.text, encoding="ascii")
            Path(folder, f"{source.kernel}.json").write_text(manifests.to_json(variant, source), encoding="ascii")
        except OSError as why:
            fail("config", f"MLX_TENSOROPS_DUMP={folder} cannot be written: {why.strerror}", nearest="a folder that can be written and has room")
