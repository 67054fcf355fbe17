"""The stand-in emulator: its build, its structs, and VariantSets for its kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import mlx_tensorops
from mlx_tensorops import rules
from mlx_tensorops.primitives import _native

RUNTIME = Path(mlx_tensorops.__file__).parent / "hostmetal" / "runtime"
MAX_BUFFERS = 31


class Options(ctypes.Structure):
    _fields_ = [("abi_version", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("layout", ctypes.c_uint32),
                ("threadgroup_limit", ctypes.c_uint32), ("layout_seed", ctypes.c_uint64),
                ("order_seed", ctypes.c_uint64), ("timeout_ms", ctypes.c_uint32), ("max_findings", ctypes.c_uint32)]


class Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("offset", ctypes.c_uint64),
                ("index", ctypes.c_uint32), ("writable", ctypes.c_uint32)]


class Launch(ctypes.Structure):
    _fields_ = [("entry", ctypes.c_void_p), ("kernel", ctypes.c_char_p), ("buffers", ctypes.c_void_p),
                ("buffer_count", ctypes.c_uint32), ("grid", ctypes.c_uint32 * 3), ("group", ctypes.c_uint32 * 3),
                ("threads", ctypes.c_uint32 * 3), ("max_threads", ctypes.c_uint32),
                ("threadgroup_args", ctypes.c_uint32 * MAX_BUFFERS)]


def options(**fields) -> bytes:
    return bytes(Options(**{"abi_version": 1, "threadgroup_limit": 32768, **fields}))


class Stub:
    """The compiled library, and the calls that reached `prepare`."""

    def __init__(self, folder: Path):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        assert compiler, "a C compiler is needed to build the stand-in emulator"
        path = folder / "emulator_stub.so"
        subprocess.run([compiler, "-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{RUNTIME}",
                        str(Path(__file__).with_name("emulator_stub.c")), "-o", str(path)], check=True)
        self.library = ctypes.CDLL(str(path))
        self.prepared: list[tuple[str, str]] = []

    def address(self, symbol: str) -> int:
        return ctypes.cast(getattr(self.library, symbol), ctypes.c_void_p).value

    def prepare(self, source: str, kernel: str) -> int:
        self.prepared.append((source, kernel))
        return self.address(kernel)

    def launcher(self, prepare=None, **fields):
        return _native.ext().HostLauncher(self.address("stub_dispatch"), options(**fields), prepare or self.prepare)

    @property
    def last(self) -> Launch:
        return Launch.in_dll(self.library, "last_launch")

    @property
    def last_options(self) -> Options:
        return Options.in_dll(self.library, "last_options")

    @property
    def last_buffers(self) -> list[Buffer]:
        return list((Buffer * MAX_BUFFERS).in_dll(self.library, "last_buffers"))[: self.last.buffer_count]


M, K, N = rules.dim(0, 0), rules.dim(0, 1), rules.dim(1, 1)
CHECKS = [(rules.eq(rules.ndim(0), 2) & rules.eq(rules.ndim(1), 2), "[matmul] a and b have two axes"),
          (rules.eq(K, rules.dim(1, 0)), "[matmul] a and b disagree about K")]


def text(rule) -> str:
    return rules.rule(rule).program()


def row(kernel="matmul", key="any", when=1, bindings=None, **changes) -> dict:
    scalars = ("scalars", "iiiqqqq", [text(r) for r in (
        M, N, K, rules.stride(0, 0), rules.stride(0, 1), rules.stride(1, 0), rules.stride(1, 1))])
    return {"key": key, "when": text(when), "kernel": kernel, "source": f"// {kernel}",
            "bindings": bindings or [("input", 0), ("input", 1), ("output", 0), scalars],
            "grid": (text(rules.ceildiv(N, 128)), text(rules.ceildiv(M, 64)), "1"), "threads": (128, 1, 1),
            "threadgroup_args": [], **changes}


def variants(*rows, vjp=None, outputs=None, checks=None, inputs=2, op="matmul"):
    """A VariantSet over a[M, K] and b[K, N] unless told otherwise."""
    return _native.ext().VariantSet(
        op, inputs, outputs or [("float32", [text(M), text(N)])],
        [(text(rule), message) for rule, message in (CHECKS if checks is None else checks)],
        list(rows) or [row()], vjp)
