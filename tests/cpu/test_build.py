"""What the compiled kernels are made of, and every kernel on its own (kernels_check.cpp), mutants included."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_tensorops.primitives import _cpu, _native

ROOT = Path(__file__).parents[2]
SOURCES, CHECK = ROOT / "cpp" / "cpu", Path(__file__).with_name("kernels_check.cpp")
FLAGS = {"baseline": [], "avx2": ["-mavx2", "-mfma", "-mf16c"],
         "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"], "neon": []}
HERE = [name for name in FLAGS if name in _cpu.info()["usable_instruction_sets"]]


def compiler() -> list[str]:
    found = shutil.which("g++") or shutil.which("clang++")
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


def run(*command: object, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=300, **kwargs)


def build(*command: object) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stderr


def build_kernels(folder: Path, name: str, sources: Path, *, level: str = "-O2", tool: list[str] | None = None) -> Path:
    kernels = folder / f"kernels_{name}.o"
    build(*(tool or compiler()), "-std=c++20", level, *FLAGS[name], "-I", sources, "-c", sources / f"kernels_{name}.cpp", "-o", kernels)
    return kernels


def build_check(kernels: Path, name: str, sources: Path, *, tool: list[str] | None = None, extra: tuple[str, ...] = ()) -> Path:
    program = kernels.with_name(f"check_{name}")
    build(*(tool or compiler()), "-std=c++20", "-O1", *extra, "-I", sources, f"-DTABLE={name}_kernels", CHECK, kernels, "-o", program)
    return program


@pytest.mark.parametrize("name", HERE)
def test_kernels_one_by_one(tmp_path, name):
    done = run(build_check(build_kernels(tmp_path, name, SOURCES), name, SOURCES))
    assert done.returncode == 0, done.stdout


# (file, what to break, how): each must be noticed.
MUTANTS = [
    ("kernels_body.h", "for (int64_t k = 0; k < depth; k++) {\n    V b[kTileVectors];", "for (int64_t k = 0; k + 1 < depth; k++) {\n    V b[kTileVectors];"),
    ("kernels_few.h", "dst[kLanes + j] = src[i + 2 * j + 1];", "dst[kLanes + j] = src[i + 2 * j];"),
    ("kernels_few.h", "bits + (i >= rest)", "bits + 1"),
    ("kernels_body.h", "store(out, accumulate ? add", "store(out, !accumulate ? add"),
    ("kernels_quant_body.h", "load(x + (s * kRows + r) * kStepCodes + j * kLanes), to)", "load(x + s * kRows * kStepCodes + j * kLanes), to)"),
    ("kernels_quant_body.h", "packs[half] >>= 64 - 8 * bits;", ""),
    ("kernels_baseline.cpp", "bits + 0x7fffu + ((bits >> 16) & 1u)", "bits + 0x8000u"),
    ("kernels_baseline.cpp", "pick(v != v, (V)(bits | 0x400000u), (V)rounded)", "(V)rounded"),
]


@pytest.mark.parametrize("mutant", [0, *(pytest.param(m, marks=pytest.mark.exhaustive) for m in range(1, len(MUTANTS)))])
def test_the_kernel_check_notices_mutants(tmp_path, mutant):
    file, old, new = MUTANTS[mutant]
    sources = tmp_path / "cpu"
    shutil.copytree(SOURCES, sources)
    text = (sources / file).read_text()
    assert text.count(old) == 1, "the mutant no longer applies"
    (sources / file).write_text(text.replace(old, new))
    done = run(build_check(build_kernels(tmp_path, "baseline", sources, level="-O1"), "baseline", sources))
    assert done.returncode == 1, done.stdout


def test_neon_compiles_and_where_possible_runs(tmp_path):
    """Compiled for arm64 Linux by zig, whose warnings are the same at every level, so the cheapest one serves; run under qemu,
    at -O2, where that and a cross toolchain are installed."""
    build(sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu", "-std=c++20", "-O0", "-Wall", "-Wextra", "-Wno-unused-function",
          "-Werror", "-I", SOURCES, "-c", SOURCES / "kernels_neon.cpp", "-o", tmp_path / "neon.o")
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cross and emulator:
        kernels = build_kernels(tmp_path, "neon", SOURCES, tool=[cross])
        done = run(emulator, build_check(kernels, "neon", SOURCES, tool=[cross], extra=("-static",)))
        assert done.returncode == 0, done.stdout
    else:
        print("the NEON kernels were compiled, not run: qemu-aarch64 or aarch64-linux-gnu-g++ is missing")


@pytest.mark.parametrize("name", [n for n in ("baseline", "avx2", "avx512") if n == "baseline" or "avx2" in HERE])
def test_kernel_files_export_one_symbol(tmp_path, name):
    """Anything else with external linkage could be merged with a baseline copy, and run where AVX does not exist.
    At -O0, where nothing is inlined and so nothing hidden; the reference to the library's exception handler is no code of ours."""
    kernels = build_kernels(tmp_path, name, SOURCES, level="-O0")
    symbols = [re.sub(r"^\S+ \S ", "", s) for s in run("nm", "--extern-only", "--defined-only", "--demangle", kernels).stdout.splitlines()]
    assert [s for s in symbols if s != "DW.ref.__gxx_personality_v0"] == [f"mlx_tensorops::cpu::{name}_kernels()"]


def test_kernel_files_include_no_library_code():
    for file in SOURCES.glob("kernels*"):
        included = set(re.findall(r"#include\s+[<\"](\S+)[>\"]", file.read_text()))
        assert included <= {"kernels.h", "kernels_body.h", "kernels_few.h", "kernels_epilogue.h", "kernels_quant.h", "kernels_quant_body.h",
                            *(f"kernels_decode_{name}.h" for name in FLAGS), "stdint.h", "immintrin.h", "arm_neon.h"}, file


def test_the_extension_exports_no_blas():
    import lief

    library = lief.parse(_native.ext().__file__)
    names = [s.name for s in library.exported_symbols]
    assert any("PyInit" in n for n in names)
    assert not [n for n in names if re.search(r"cblas_|sgemm", n)]
