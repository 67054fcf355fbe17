"""Compiled code on disk, by the hash of everything that went into it; safe between processes.

A name is a content hash and never changes its content: the dynamic loader keeps what it first loaded under a name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import config
from ..errors import lesson
from . import toolchain
from .findings import ToolchainError


def folder() -> Path:
    path = Path(config.cache_home()) / "hostmetal"
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise ToolchainError(lesson("hostmetal", f"compiled kernels cannot be kept in {path}", instead="set MLX_TENSOROPS_CACHE to a folder that can be written"))
    return path


def key_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Locks are shared by the first byte of a hash: few files, and two builds hardly ever wait for each other.
def obtain(name: str, make: Callable[[Path, Path], None]) -> Path:
    """Path of the cached file ``name``. If absent, ``make(work_folder, target)`` creates it: one process at a time."""
    home = folder()
    path = home / name
    if path.exists():
        return path
    with _locked(home / f".lock-{key_of(name)[:2]}"):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=home) as work:
                target = Path(work) / name
                make(Path(work), target)
                os.replace(target, path)
    return path


def _build_runtime(work: Path, target: Path) -> None:
    tools = toolchain.find()
    object_file = work / "rt.o"
    commands = (
        [*tools.cc, "-O2", "-fPIC", "-fvisibility=default", "-c", str(toolchain.RUNTIME / "rt.c"), "-o", str(object_file)],
        [*tools.link, "-shared", f"{_soname_flag(tools)}{target.name}", str(object_file), "-o", str(target)],
    )
    for command in commands:
        done = toolchain.run(command)
        if done.returncode:
            raise ToolchainError(lesson("hostmetal", f"the runtime does not build with {tools.name}: {done.stderr[-2000:]}"))


def _soname_flag(tools: toolchain.Toolchain) -> str:
    return "-soname=" if tools.link[-1] == "ld.lld" else "-Wl,-soname,"


@functools.lru_cache(maxsize=None)
def _runtime_path(home: str) -> Path:
    tools = toolchain.find()
    key = key_of(tools.name, tools.target, toolchain.content_hash(toolchain.RUNTIME), (toolchain.INCLUDE / "hm_rt.h").read_bytes())
    return obtain(f"libhm-{key}.so", _build_runtime)


def runtime_path() -> Path:
    """The runtime library, built on first use. Kernels name it by its soname, so there is one per process."""
    return _runtime_path(config.cache_home())


@functools.lru_cache(maxsize=None)
def load(path: Path) -> ctypes.CDLL:
    """A library of this cache, loaded once. Kernels find libm and the runtime among what is loaded."""
    if not path.name.startswith("libhm-"):
        load(runtime_path())
        with contextlib.suppress(OSError):
            ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW)
