"""The decode macros of every format in one emulated kernel, and of some formats with a bug planted: one build for all of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mlx_tensorops import formats
from mlx_tensorops.formats import PACK, Format
from mlx_tensorops.hostmetal import build
from mlx_tensorops.hostmetal.kernel import Kernel
from mlx_tensorops.hostmetal.options import Options
from mlx_tensorops.shaders import render

# One format per text: groups only change a constant.
TABLE3 = Format("table3", "table3", 3, 32, "table", "float", values=(-2.5, -1.0, -0.4, 0.0, 0.3, 1.0, 1.7, 1e-3))
TABLE8_E8M0 = Format("table8", "table8", 8, 32, "table", "e8m0", values=tuple(float(i * i) - 100.1 for i in range(256)))
E4M3_BOTH = Format("e4m3_both", "e4m3_both", 8, 16, "e4m3", "e4m3")
UNBIASED2 = Format("plain2", "plain2", 2, 48, "unsigned", "e4m3")
OWN = (TABLE3, TABLE8_E8M0, E4M3_BOTH, UNBIASED2)
SUBJECTS = {f.name: f for f in (*(formats.by_name(f"affine{bits}_g64") for bits in (1, 2, 3, 4, 5, 6, 8)),
                                *map(formats.by_name, ("mxfp4", "mxfp8", "nvfp4")), *OWN)}

# name -> (format, correct text, planted text); without a correct text the harness reads the wrong scale.
PLANTED = {
    "nibbles_swapped": ("nvfp4", "low = *(const device uint*)packed,", "low = ((*(const device uint*)packed & 0x0f0f0f0fu) << 4 | (*(const device uint*)packed >> 4 & 0x0f0f0f0fu)),"),
    "halves_swapped": ("affine4_g64", "high = low >> 16", "high = low"),
    "sign_lost": ("nvfp4", " | (code & 8) << 28", ""),
    "e2m1_subnormal": ("nvfp4", "magnitude * (126u << 23)", "0u"),
    "e4m3_subnormal": ("mxfp8", "magnitude < 8", "magnitude < 0"),
    "e4m3_nan": ("mxfp8", "0x7fc00000u", "bits"),
    "e4m3_sign": ("nvfp4", " | (code & 0x80) << 24", ""),
    "e8m0_zero": ("mxfp8", "max(uint(s) << 23, 0x00400000u)", "uint(s) << 23"),
    "straddle6": ("affine6_g64", "uint(words[2]) << 8", "uint(words[2]) << 16"),
    "straddle5": ("affine5_g64", "middle >> 4", "middle"),
    "straddle3": ("affine3_g64", "high = low >> 12", "high = low >> 11"),
    "mask": ("affine2_g64", "& 3u", "& 1u"),
    "bias_lost": ("affine8_g64", "fma(code, scale, bias)", "code * scale"),
    "two_roundings": ("affine8_g64", "fma(code, scale, bias)", "as_type<float>(as_type<uint>(code * scale)) + bias"),
    "scale_per_tile": ("nvfp4", "", "SCALE = pack * PACK / (2 * GROUP)"),
    "scale_of_next_pack": ("nvfp4", "", "SCALE = (pack + 1) * PACK / GROUP % blocks"),
}

# Loads wider than the alignment of a pack; values are right, the checked build must refuse the address.
TOO_WIDE = {
    "pair_of_words": ("affine8_g64", "low = words[0], high = words[1]", "low = uint(*(const device ulong*)words), high = uint(*(const device ulong*)words >> 32)"),
    "word_of_6_bits": ("affine6_g64", "middle = words[1]", "middle = *(const device uint*)packed >> 16"),
    "word_of_2_bits": ("affine2_g64", "*(const device ushort*)packed", "*(const device uint*)packed & 0xffff"),
    "short_of_3_bits": ("affine3_g64", "packed[0] | uint(packed[1]) << 8", "*(const device ushort*)packed"),
    "short_of_5_bits": ("affine5_g64", "packed[0] | uint(packed[1]) << 8", "*(const device ushort*)packed"),
}
ALTERED = PLANTED | TOO_WIDE

_RUN = """
template <typename S>
void run(int pack, int blocks, const device uint* w, const device S* scales, const device S* biases, device float* codes, device float* weights) {
  float values[PACK];
  decode_pack((const device uchar*)w + pack * BITS, values);
  const int SCALE = pack * PACK / GROUP;
  const float scale = scale_value(scales[SCALE]), bias = BIASED ? float(biases[SCALE]) : 0.0f;
  for (int i = 0; i < PACK; ++i) {
    codes[pack * PACK + i] = values[i];
    weights[pack * PACK + i] = weight_value(values[i], scale, bias);
  }
}
"""

_KERNEL = """
[[kernel]] void formats_decode(const device uint* w [[buffer(0)]], const device void* scales [[buffer(1)]], const device void* biases [[buffer(2)]],
    device float* codes [[buffer(3)]], device float* weights [[buffer(4)]], constant int& which [[buffer(5)]], constant int& blocks [[buffer(6)]],
    constant int& first_word [[buffer(7)]],
    uint pack [[thread_position_in_grid]]) {
%s
}
"""


def decode_text(format: Format) -> str:
    return render._environment().get_template("parts/decode.metal.j2").render(fmt=format)


def _scale_types(format: Format) -> tuple[str, ...]:
    return ("half", "bfloat", "float") if format.scale == "float" else ("uchar",)


def planted_text(name: str) -> tuple[Format, str, str]:
    """(format, decode text, harness text) of a planted bug; the text it changes must be there."""
    subject, correct, wrong = ALTERED[name]
    text, harness = decode_text(SUBJECTS[subject]), _RUN
    if not correct:
        return SUBJECTS[subject], text, harness.replace("SCALE = pack * PACK / GROUP", wrong)
    assert text.count(correct) >= 1, f"{name}: {correct!r} is not in the text"
    return SUBJECTS[subject], text.replace(correct, wrong), harness


@lru_cache(maxsize=1)
def source() -> tuple[str, dict[tuple[str, str], int]]:
    """Text of the kernel, and the number by which it knows (subject or planted bug, scale type)."""
    parts, calls, numbers = ["#include <metal_stdlib>\nusing namespace metal;\n"], [], {}
    everyone = [(f.name, f, decode_text(f), _RUN) for f in SUBJECTS.values()] + [(name, *planted_text(name)) for name in ALTERED]
    for name, format, text, harness in everyone:
        biased = f"constant constexpr bool BIASED = {'true' if format.biased else 'false'};\n"
        parts.append(f"namespace {name} {{\n{text}\n{biased}{harness}}}\n")
        for type in _scale_types(format):
            number = numbers[name, type] = len(numbers)
            calls.append(f"  if (which == {number}) {name}::run(int(pack), blocks, w + first_word, (const device {type}*)scales, (const device {type}*)biases, codes, weights);")
    return "\n".join(parts) + _KERNEL % "\n".join(calls), numbers


@lru_cache(maxsize=None)
def _kernel(dialect: str) -> Kernel:
    return Kernel(build.build(source()[0], "formats_decode", checked=True, dialect=dialect, family="formats"), checked=True, options=Options())


def decode(name: str, w, scales, biases=None, *, scale_type: str | None = None, dialect: str = "4.0", first_word: int = 0, **adversary):
    """(unscaled codes, weights) as float32 arrays of shape ``[..., K]`` from one emulated launch.

    Args:
        name: format or planted bug.
        scales, biases: NumPy arrays in the bytes that Metal's ``scale_type`` has (bfloat as uint16).
        first_word: where in its buffer the row of packed weights starts.
    """
    format = SUBJECTS[ALTERED[name][0] if name in ALTERED else name]
    scale_type = scale_type or _scale_types(format)[0]
    count = w.size * 32 // format.bits
    empty = np.full(count, np.nan, np.float32)
    result = _kernel(dialect).dispatch(
        grid=-(-count // PACK // 32), threads=count // PACK, threadgroup=32,
        buffers=[np.concatenate([np.zeros(first_word, np.uint32), w.reshape(-1)]), np.ascontiguousarray(scales).reshape(-1), np.ascontiguousarray(scales if biases is None else biases).reshape(-1),
                 empty, empty.copy(), source()[1][name, scale_type], scales.size, first_word], **adversary)
    shape = (*w.shape[:-1], w.shape[-1] * 32 // format.bits)
    return result.outputs[3].reshape(shape), result.outputs[4].reshape(shape)
