"""Finding lld for Mach-O: zig carries lld too, but only for ELF, COFF and WebAssembly."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from . import fetch

# Known to read the macOS 26 stubs below and clang 22's objects.
PACKAGES = ("lld-19", "libllvm19")


def find() -> tuple[list[str], dict[str, str]]:
    """Command and environment of ld64.lld: an installed one, else Debian's, unpacked without root."""
    for name in ("ld64.lld", *(f"ld64.lld-{version}" for version in range(25, 15, -1))):
        if path := shutil.which(name):
            return [path], dict(os.environ)
    root = fetch.CACHE / PACKAGES[0]
    if not root.is_dir():
        _unpack(root)
    libraries = ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu")))
    return [str(root / "usr/lib/llvm-19/bin/ld64.lld")], {**os.environ, "LD_LIBRARY_PATH": libraries}


def _unpack(root: Path) -> None:
    hint = f"install lld, for instance: apt-get install --no-install-recommends {PACKAGES[0]}"
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise fetch.Unreachable(f"no ld64.lld on PATH; {hint}")
    draft = fetch.fresh(root)
    failure = _download(draft, []) and _download(draft, _own_lists(draft))
    archives = sorted(draft.glob("*.deb"))
    if failure or len(archives) != len(PACKAGES):
        raise fetch.Unreachable(f"apt-get download {' '.join(PACKAGES)}: {failure}; {hint}")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(draft)], check=True)
        archive.unlink()
    for leftover in ("lists", "cache"):
        shutil.rmtree(draft / leftover, ignore_errors=True)
    fetch.publish(draft, root)


def _download(folder: Path, options: list[str]) -> str:
    """The error, or "" when the packages are in the folder."""
    done = subprocess.run(["apt-get", *options, "download", *PACKAGES], cwd=folder, capture_output=True, text=True)
    return done.stderr.strip()[-400:] or "failed" if done.returncode else ""


def _own_lists(folder: Path) -> list[str]:
    """Options under which apt knows the packages: a fresh container has no lists, and only root may fetch them."""
    lists, cache = folder / "lists", folder / "cache"
    (lists / "partial").mkdir(parents=True)
    cache.mkdir()
    options = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
    subprocess.run(["apt-get", *options, "update"], capture_output=True)
    return options
