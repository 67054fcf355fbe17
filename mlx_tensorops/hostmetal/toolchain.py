"""The compiler behind the emulator: which one, how it is called, and the runtime library that it builds once.

Kernels are compiled as C++ for OpenCL 2021: that front end has address spaces that are part of the type
system, as Metal's are, and on the host all of them are the same memory. One compile checks and one compile runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .. import config
from ..errors import lesson
from .findings import ToolchainError

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime"
MINIMUM_CLANG = 19
SDKS = {"26.0": 260, "26.1": 261, "26.2": 262, "26.4": 264, "27": 270}
# What clang and the linker say of a file that they cannot write; no fault of the kernel. Some only stop, by a signal.
_UNWRITTEN = re.compile("No space left on device|Disk quota exceeded|Quota exceeded|File too large")
DIALECTS = {"3.1": 310, "3.2": 320, "4.0": 400, "4.1": 410}

_INSTALL = "pip install 'mlx_tensorops[hostmetal]'"
_MACHINES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Toolchain:
    """Commands of one compiler: ``clang`` takes kernels, ``cc`` takes C, ``link`` takes -shared and objects."""

    name: str
    clang: tuple[str, ...]
    cc: tuple[str, ...]
    link: tuple[str, ...]
    target: str


def _zig() -> tuple[str, ...] | None:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    program = folder / ("zig.exe" if os.name == "nt" else "zig")
    return (str(program),) if program.exists() else (sys.executable, "-m", "ziglang")


def _output(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _clang_version(command: tuple[str, ...]) -> tuple[int, str]:
    text = _output((*command, "--version"))
    match = re.search(r"clang version (\d+)\.\S*", text)
    return (int(match[1]), match[0]) if match else (0, "")


@functools.lru_cache(maxsize=None)
def _find(override: str, path: str) -> Toolchain:
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise ToolchainError(lesson("hostmetal", f"the emulator runs on Linux, x86-64 or aarch64, not on {sys.platform} {platform.machine()}"))
    target = f"{machine}-linux-gnu"
    if override:
        version, name = _clang_version((override,))
        if version < MINIMUM_CLANG:
            raise ToolchainError(lesson("hostmetal", f"MLX_TENSOROPS_HOSTMETAL_CLANG={override} is no clang >= {MINIMUM_CLANG} ({name or 'it does not run'})",
                                        instead=f"unset it and {_INSTALL}"))
        return Toolchain(name, (override,), (override,), (override, "-nostdlib"), target)
    zig = _zig()
    if zig is not None:
        version, name = _clang_version((*zig, "clang"))
        if version >= MINIMUM_CLANG:
            return Toolchain(f"ziglang {name}", (*zig, "clang"), (*zig, "cc"), (*zig, "ld.lld"), target)
    for candidate in ("clang", *(f"clang-{n}" for n in range(30, MINIMUM_CLANG - 1, -1))):
        program = shutil.which(candidate, path=path)
        if program:
            version, name = _clang_version((program,))
            if version >= MINIMUM_CLANG:
                return Toolchain(name, (program,), (program,), (program, "-nostdlib"), target)
    raise ToolchainError(lesson("hostmetal", f"no clang >= {MINIMUM_CLANG} found: neither the ziglang package nor one on PATH", instead=_INSTALL))


def find() -> Toolchain:
    """The compiler: MLX_TENSOROPS_HOSTMETAL_CLANG, else the ziglang package, else clang on PATH."""
    return _find(config.get("MLX_TENSOROPS_HOSTMETAL_CLANG"), os.pathsep.join(os.get_exec_path()))


def describe() -> str:
    """The compiler in one line, or an error that says what to install."""
    tools = find()
    return f"{tools.name} for {tools.target}"


@functools.lru_cache(maxsize=1)
def _machine_flags() -> tuple[str, ...]:
    if _MACHINES.get(platform.machine()) == "aarch64":
        return ("-march=armv8.2-a+fp16",)
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    return tuple(f"-m{name}" for name in ("avx2", "f16c") if name in words)


def kernel_flags(*, checked: bool, sdk: str, dialect: str) -> tuple[str, ...]:
    """Everything on the compiler's command line that decides what a kernel becomes."""
    flags = [
        "-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-target", find().target, *_machine_flags(),
        "-O2", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-gline-tables-only", "-fdeclspec",
        "-cl-single-precision-constant", "-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64",  # 1.0 is a float, double an error
        "-fno-convergent-functions",  # the calls that are convergent say so in hm_rt.h; calling all so forbids hoisting
        "-Wno-everything", "-Werror=implicit-function-declaration", "-fno-caret-diagnostics",
        f"-I{INCLUDE}", "-include", str(INCLUDE / "hm_rt.h"),
        f"-D__METAL_VERSION__={DIALECTS[dialect]}", f"-D__HM_SDK={SDKS[sdk]}",
    ]  # fmt: skip
    if checked:
        flags += [
            "-DHM_CHECKED_BUILD=1", "-fsanitize=thread,alignment,array-bounds", "-fstrict-flex-arrays=3",
            "-fno-vectorize", "-fno-slp-vectorize",  # accesses above 16 bytes would go unseen
            "-mllvm", "-tsan-instrument-func-entry-exit=0",
            "-mllvm", "-tsan-instrument-read-before-write=1",
        ]  # fmt: skip
    return tuple(flags)


def run(command: list[str] | tuple[str, ...], *, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """A compiler's run. That it did not start or was stopped is an error; that it refused its input is the caller's to tell."""
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ToolchainError(lesson("hostmetal", f"the compiler did not end within {timeout:.0f} s")) from None
    except OSError as why:
        raise ToolchainError(lesson("hostmetal", f"the compiler does not start: {why}", instead=_INSTALL)) from why
    unwritten = _UNWRITTEN.search(done.stderr) if done.returncode else None
    if unwritten:
        raise ToolchainError(lesson("hostmetal", f"the compiler cannot write below {config.cache_home()}: {unwritten[0]}", instead="set MLX_TENSOROPS_CACHE to a folder that has room"))
    if done.returncode < 0:
        raise ToolchainError(lesson("hostmetal", f"the compiler was stopped by signal {-done.returncode}", instead=f"see whether memory or the room in {config.cache_home()} ran out, then call again"))
    return done


def log_build(family: str, key: str) -> None:
    """One line per real compiler run, where the switch asks for it: tests hold families to a quota."""
    path = config.get("MLX_TENSOROPS_BUILD_LOG")
    if path:
        try:
            with open(path, "a") as log:
                log.write(f"{family}\t{key}\n")
        except OSError as why:
            raise ToolchainError(lesson("hostmetal", f"MLX_TENSOROPS_BUILD_LOG={path} cannot be written: {why.strerror}", nearest="a file in a folder that exists")) from why


@functools.lru_cache(maxsize=None)
def content_hash(folder: Path) -> str:
    """Hash of every file below a folder, names included."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
