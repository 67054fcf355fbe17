"""Compiled code on disk, by the hash of everything that went into it; safe between processes.

A name is a content hash and never changes its content: the dynamic loader keeps what it first loaded under a name.
A file ends with a seal, the hash of the rest: what a full disk, a crash or a copy cut short is built again, not loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import config
from ..errors import lesson
from . import toolchain
from .findings import ToolchainError

LOCK_WAIT = 120.0  # seconds; the slowest kernel here compiles in a few, on a machine with twenty times too much to do in less
_POLL = 0.02
_WORK = ".work-"
_WORK_LIFE = 3600.0  # seconds; no build lasts that long, so whoever made the folder was killed
_SEAL = b"\n// "  # a comment to C; the loader and the reader of precompiled headers stop before it
_SEAL_BYTES = len(_SEAL) + 64


def place(name: str) -> Path:
    """Where an entry of that name is, or would be."""
    return Path(config.cache_home()) / "hostmetal" / name


def folder() -> Path:
    """The folder of all entries, which can be written; else an error."""
    path = place("")
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise _cannot_keep(path)
    return path


def _cannot_keep(path: Path, why: OSError | None = None) -> ToolchainError:
    reason = f": {why.strerror or why}" if why else ""
    return ToolchainError(lesson("hostmetal", f"compiled kernels cannot be kept in {path}{reason}", instead="set MLX_TENSOROPS_CACHE to a folder that can be written and has room"))


def key_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One builder at a time, but nobody waits for ever: after LOCK_WAIT the holder counts as hung and is not waited for.

    Two builders of one entry do no harm: both make the same content, and it is renamed into its place.
    """
    with open(path, "w") as file:
        end = time.monotonic() + LOCK_WAIT
        while not _locked(file):
            if time.monotonic() >= end:
                with contextlib.suppress(OSError):  # whoever comes next finds a new lock, not the one that is held
                    if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                        path.unlink()
                break
            time.sleep(_POLL)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # closing would not do: a process forked meanwhile has the file open, too
                fcntl.flock(file, fcntl.LOCK_UN)


def _locked(file) -> bool:
    """Whether there is nothing to wait for: the lock is ours, or the file system has none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# Locks are shared by the first byte of a hash: few files, and two builds hardly ever wait for each other.
def obtain(name: str, make: Callable[[Path, Path], None]) -> Path:
    """Path of the cached file or folder ``name``. If absent, ``make(work_folder, target)`` creates it: one process at a time."""
    path = place(name)
    if present(path):
        return path
    home = folder()
    _sweep(home)
    try:
        with _turn(home / f".lock-{key_of(name)[:2]}"):
            if not present(path):
                with tempfile.TemporaryDirectory(dir=home, prefix=_WORK) as work:
                    target = Path(work) / name
                    make(Path(work), target)
                    for file in _files(target):
                        content = file.read_bytes()
                        file.write_bytes(content + _seal(content))
                    if path.is_dir():  # a damaged folder cannot be replaced, only moved out of the way
                        os.replace(path, Path(work) / "damaged")
                    os.replace(target, path)
    except OSError as why:
        raise _cannot_keep(home, why) from why
    return path


def _seal(content: bytes) -> bytes:
    return _SEAL + hashlib.sha256(content).hexdigest().encode()


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def present(path: Path) -> bool:
    """Whether the entry is there and whole."""
    try:
        return path.exists() and all(_whole(file, *_identity(file)) for file in _files(path))
    except OSError:
        return False


def _identity(file: Path) -> tuple[int, ...]:
    seen = file.stat()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


@functools.lru_cache(maxsize=None)
def _whole(file: Path, *identity: int) -> bool:
    content = file.read_bytes()
    return content[-_SEAL_BYTES:] == _seal(content[:-_SEAL_BYTES])


@functools.lru_cache(maxsize=None)
def _sweep(home: Path) -> None:
    """Removes what killed builders left behind. Once per process: listing a large cache is not free."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(home):
            if entry.name.startswith(_WORK) and time.time() - entry.stat().st_mtime > _WORK_LIFE:
                shutil.rmtree(entry.path, ignore_errors=True)


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
def _runtime_name(tools: toolchain.Toolchain) -> str:
    key = key_of(tools.name, tools.target, toolchain.content_hash(toolchain.RUNTIME), (toolchain.INCLUDE / "hm_rt.h").read_bytes())
    return f"libhm-{key}.so"


def runtime_path() -> Path:
    """The runtime library, built on first use. Kernels name it by its soname, so there is one per process."""
    return obtain(_runtime_name(toolchain.find()), _build_runtime)


_loaded: dict[str, ctypes.CDLL] = {}  # by name, wherever the cache is: with two runtimes kernels would call the one that runs nothing


def load(path: Path) -> ctypes.CDLL:
    """A library of this cache, loaded once. Kernels find libm and the runtime among what is loaded."""
    if path.name in _loaded:
        return _loaded[path.name]
    if not path.name.startswith("libhm-"):
        load(runtime_path())
        with contextlib.suppress(OSError):
            ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    try:
        return _loaded.setdefault(path.name, ctypes.CDLL(str(path), mode=os.RTLD_NOW))
    except OSError as why:
        raise ToolchainError(lesson("hostmetal", f"a compiled kernel cannot be loaded: {why}", instead="set MLX_TENSOROPS_CACHE to a folder from which libraries may be loaded (not mounted noexec)")) from why
