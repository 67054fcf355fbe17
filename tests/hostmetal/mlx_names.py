"""Instantiations of MLX's templated kernels, rebuilt from the names in its metallib: the wheel ships no .metal files."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from mlx_tensorops.hostmetal import headers, toolchain

from .mlx_cases import MlxCase

_TYPES = {"float16": "half", "bfloat16": "bfloat16_t", "float32": "float", "float": "float", "float16_t": "half", "bfloat16_t": "bfloat16_t", "bool_": "bool", "complex64": "complex64_t"}
_T = r"(float16_t|bfloat16_t|float16|bfloat16|float32|float|complex64)"
_TILE = r"bm(\d+)_bn(\d+)_bk(\d+)_wm(\d+)_wn(\d+)"
_GEMM = ("steel/gemm/gemm.h",)
_QUANT, _FP = (*_GEMM, "quantized_utils.h", "quantized.h"), (*_GEMM, "quantized_utils.h", "fp_quantized.h")
_GS = rf"{_T}_gs_(\d+)_b_(\d+)"


def _layout(text: str) -> list[str]:
    return ["true" if c == "t" else "false" for c in text]


def _yes(flag: str | None) -> str:
    return "true" if flag in ("true", "1", "_hgs", "t") else "false"


def _tiled(kernel: str):
    def make(m: re.Match) -> str:
        layout, a, *rest = m.groups()
        return f"{kernel}<{', '.join([_TYPES[a], *rest[1:6], *_layout(layout)])}>"

    return make


def _splitk(m: re.Match) -> str:
    layout, a, c, *tile, mn, k = m.groups()
    return f"gemm_splitk<{', '.join([_TYPES[a], _TYPES[c], *tile, *_layout(layout), _yes(mn), _yes(k)])}>"


def _attention(m: re.Match) -> str:
    t, *sizes, mask = m.groups()
    return f"attention<{_TYPES[t]}, {', '.join(sizes)}, {_TYPES[mask]}, float>"


def _quantised(kernel: str, *flags: str):
    """flags: what follows type, group size and bits: "aligned" or "batched" taken from the name."""

    def make(m: re.Match) -> str:
        t, gs, b, *rest = m.groups()
        return f"{kernel}<{', '.join([_TYPES[t], gs, b, *(_yes(r) for r, f in zip(rest, flags))])}>"

    return make


FAMILIES: list[tuple[str, tuple[str, ...], object]] = [
    (rf"steel_gemm_fused_(nn|nt|tn|tt)_{_T}_{_T}_{_TILE}", (*_GEMM, "steel/gemm/kernels/steel_gemm_fused.h"), _tiled("gemm")),
    (rf"steel_gemm_splitk_(nn|nt|tn|tt)_{_T}_{_T}_{_TILE}_MN_(t|n)aligned_K_(t|n)aligned", (*_GEMM, "steel/gemm/kernels/steel_gemm_splitk.h"), _splitk),
    (rf"steel_gather_mm_(nn|nt|tn|tt)_{_T}_{_T}_{_TILE}", (*_GEMM, "steel/gemm/kernels/steel_gemm_gather.h"), _tiled("gather_mm")),
    (rf"steel_gather_mm_rhs_(nn|nt)_{_T}_{_T}_{_TILE}", (*_GEMM, "steel/gemm/kernels/steel_gemm_gather.h"), _tiled("gather_mm_rhs")),
    (rf"steel_segmented_mm_(nn|nt|tn|tt)_{_T}_{_T}_{_TILE}", (*_GEMM, "steel/gemm/kernels/steel_gemm_segmented.h"), _tiled("segmented_mm")),
    (rf"steel_attention_{_T}_bq(\d+)_bk(\d+)_bd(\d+)_bv(\d+)_wm(\d+)_wn(\d+)_mask(float16|bfloat16|float32|bool_)", ("steel/attn/kernels/steel_attention.h",), _attention),
    (rf"affine_qmm_t_{_GS}_alN_(true|false)_batch_(0|1)", _QUANT, _quantised("affine_qmm_t", "aligned", "batched")),
    (rf"affine_qmm_n_{_GS}_batch_(0|1)", _QUANT, _quantised("affine_qmm_n", "batched")),
    (rf"affine_gather_qmm_t_{_GS}_alN_(true|false)", _QUANT, _quantised("affine_gather_qmm_t", "aligned")),
    (rf"affine_gather_qmm_n_{_GS}", _QUANT, _quantised("affine_gather_qmm_n")),
    (rf"affine_quantize_{_GS}", _QUANT, _quantised("affine_quantize")),
    (rf"affine_dequantize_{_GS}", _QUANT, _quantised("affine_dequantize")),
    (rf"(?:mxfp4|mxfp8|nvfp4)_qmm_t_{_GS}_alN_(true|false)_batch_(0|1)(_hgs)?", _FP, _quantised("fp_qmm_t", "aligned", "batched", "scaled")),
    (rf"(?:mxfp4|mxfp8|nvfp4)_qmm_n_{_GS}_batch_(0|1)(_hgs)?", _FP, _quantised("fp_qmm_n", "batched", "scaled")),
    (rf"(?:mxfp4|mxfp8|nvfp4)_gather_qmm_t_{_GS}_alN_(true|false)(_hgs)?", _FP, _quantised("fp_gather_qmm_t", "aligned", "scaled")),
    (rf"(?:mxfp4|mxfp8|nvfp4)_gather_qmm_n_{_GS}(_hgs)?", _FP, _quantised("fp_gather_qmm_n", "scaled")),
    (rf"(?:mxfp4|mxfp8|nvfp4)_quantize_{_GS}_hgs_(true|false)", _FP, _quantised("fp_quantize", "scaled")),
]


# What does not compile here, and why.
UNSUPPORTED = {
    r"steel_gemm_(fused|splitk)_\w*complex64_\w*": "gemm/loader.h has `c ? lvalue : value` of a class; this front end gives the two arms different types",
}


def kernel_names(metallib: Path) -> list[str]:
    """Names of the functions in a metallib, from its NAME tags (tag, 16-bit length, text, 0)."""
    found = set()
    with open(metallib, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for tag in re.finditer(rb"NAME(..)", data, re.DOTALL):
            text = data[tag.end() : tag.end() + int.from_bytes(tag[1], "little")]
            if re.fullmatch(rb"\w+\0", text):
                found.add(text[:-1].decode())
    return sorted(found)


def instantiations(names: list[str]) -> Iterator[tuple[int, str, str]]:
    """(number of its family, name, instance) of every name that FAMILIES knows and that is supported."""
    compiled = [(re.compile(pattern), make) for pattern, _, make in FAMILIES]
    for name in names:
        if any(re.fullmatch(pattern, name) for pattern in UNSUPPORTED):
            continue
        for number, (pattern, make) in enumerate(compiled):
            match = pattern.fullmatch(name)
            if match:
                yield number, name, make(match)
                break


def syntax_check(include: Path, family: int, instances: list[str]) -> str:
    """Instantiates in one translation unit; what the compiler says, empty when all is well."""
    case = MlxCase("", FAMILIES[family][1], "", "", lambda rng: ([], {}), (1,), (1,))
    text = case.source + "".join(f"\ntemplate decltype({i}) {i};" for i in dict.fromkeys(instances)) + "\n"
    found = headers.reachable(text, [include])
    flags = [*toolchain.kernel_flags(checked=False, sdk="26.4", dialect="4.0"), f"-I{found.folder()}", "-fsyntax-only"]
    flags += [f"-D__HM_FC_{name}=false" for name in found.function_constants()[0]]
    path = Path(found.folder()) / f"names{family}-{abs(hash(text))}.cl"
    path.write_text(text)
    try:
        return toolchain.run([*toolchain.find().clang, *flags, str(path)]).stderr
    finally:
        path.unlink()
