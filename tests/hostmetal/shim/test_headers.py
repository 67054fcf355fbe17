"""Entry headers stand alone, and the operand types that matmul2d takes are those of each SDK."""

from itertools import product

import pytest

from mlx_tensorops.hostmetal import toolchain

I8, U8, F16, BF16, F32, I32 = "char", "uchar", "half", "bfloat", "float", "int"
# (left, right) -> destinations, in the SDK that adds the row (dispatch chains of the SDK headers' run())
SINCE = {
    "26.0": {(I8, I8): [I32], (I8, F16): [F16, F32], (I8, F32): [F32], (F16, I8): [F16, F32], (F16, F16): [F16, F32], (F16, F32): [F32],
             (F32, I8): [F32], (F32, F16): [F32], (F32, F32): [F32]},
    "26.1": {(BF16, BF16): [BF16, F32], (BF16, F32): [F32], (F32, BF16): [F32], (BF16, I8): [BF16, F32], (I8, BF16): [BF16, F32],
             (BF16, F16): [BF16, F16, F32], (F16, BF16): [BF16, F16, F32]},
    "26.4": {(U8, U8): [I32], (U8, F16): [F16, F32], (F16, U8): [F16, F32], (U8, F32): [F32], (F32, U8): [F32], (U8, BF16): [BF16, F32],
             (BF16, U8): [BF16, F32], (F16, "int4b_format"): [F16, F32], (F16, "uint4b_format"): [F16, F32], (BF16, "int4b_format"): [BF16, F32],
             (BF16, "uint4b_format"): [BF16, F32], (I8, "int4b_format"): [I32], (U8, "uint4b_format"): [I32]},
    "27": {(I8, "int2b_format"): [I32], (U8, "uint2b_format"): [I32],
           (F16, "int2b_format"): [F16, F32], (F16, "uint2b_format"): [F16, F32], (BF16, "int2b_format"): [BF16, F32], (BF16, "uint2b_format"): [BF16, F32],
           **{(left, right): [F16, F32] for right in ("metal_fp4_e2m1_format", "metal_fp8_e4m3_format", "metal_fp8_e5m2_format") for left in (F16, right)}},
}  # fmt: skip
COUNTS = {"26.0": 12, "26.1": 26, "26.4": 47, "27": 69}
"""rows, as the headers count them: 47 in 26.5, 69 in 27"""


def _syntax(tmp_path, text, sdk="26.4", dialect="4.0"):
    source = tmp_path / "header.cl"
    source.write_text(text)
    done = toolchain.run([*toolchain.find().clang, *toolchain.kernel_flags(checked=False, sdk=sdk, dialect=dialect), "-fsyntax-only", str(source)])
    assert done.returncode == 0, done.stderr[:2000]


def _entries():
    return sorted(p.name for p in toolchain.INCLUDE.iterdir() if p.name.startswith("metal_")) + ["MetalPerformancePrimitives/MetalPerformancePrimitives.h"]


@pytest.mark.parametrize("name", _entries())
def test_an_entry_header_stands_alone(name, tmp_path):
    _syntax(tmp_path, f"#include <{name}>\n")


@pytest.mark.parametrize("sdk", SINCE)
def test_operand_types_of_an_sdk(sdk, tmp_path):
    dialect = "4.1" if sdk == "27" else "4.0"
    legal = {}
    for since, rows in SINCE.items():
        legal |= rows
        if since == sdk:
            break
    assert sum(map(len, legal.values())) == COUNTS[sdk]
    names = [I8, U8, F16, BF16, F32, I32, *sorted({t for pair in legal for t in pair if t.endswith("format")})]
    asserts = [
        f"static_assert(__hm::legal_types<{a}, {b}, {c}>() == {'true' if c in legal.get((a, b), ()) else 'false'}, \"{a} x {b} -> {c}\");"
        for a, b, c in product(names, names, (F16, BF16, F32, I32))
    ]
    include = "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\nusing namespace metal;\n"
    _syntax(tmp_path, include + "\n".join(asserts), sdk, dialect)
