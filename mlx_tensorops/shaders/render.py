"""Variant -> shader text. Values become named constants at the top; the arithmetic stays in Python."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .. import config, registry, signature
from ..dtypes import element_type
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
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
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
    a, b, c = (element_type(t) for t in variant.types)
    tile = variant.tile
    transpose_right = variant.layout == "nt"
    strided = variant.layout == "strided"
    return dict(
        title=_title(variant, sign),
        params_struct=msl.params_struct(sign),
        kernel_head=kernel_head,
        tile=tile, a=a, b=b, c=c,
        ragged_m=variant.alignment != "aligned",
        ragged_n=variant.alignment == "ragged",
        ragged_k=variant.alignment == "ragged",
        offset_type="long" if strided else "int",
        descriptor=msl.descriptor(m=tile.op_m, n=tile.op_n, k=tile.op_k, transpose_right=transpose_right,
                                  relaxed_precision=variant.relaxed),
        fragments_m=range(tile.fragments_m), fragments_n=range(tile.fragments_n),
        transpose_right=transpose_right,
        right_k_coordinate=0 if transpose_right else 1,
        # The contiguous stride of a row is the constant 1, so that its multiplications vanish.
        a_k="p.a_k" if strided else "1",
        b_k="1" if transpose_right else "p.b_k",
        b_n="p.b_n" if strided or transpose_right else "1",
    )


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

        os.makedirs(folder, exist_ok=True)
        Path(folder, f"{source.kernel}.metal").write_text(source.text, encoding="ascii")
        Path(folder, f"{source.kernel}.json").write_text(manifests.to_json(variant), encoding="ascii")
