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
    done = subprocess.run(["apt-get", "download", *PACKAGES], cwd=draft, capture_output=True, text=True)
    archives = sorted(draft.glob("*.deb"))
    if done.returncode or len(archives) != len(PACKAGES):
        raise fetch.Unreachable(f"apt-get download {' '.join(PACKAGES)}: {done.stderr.strip()[-400:]}; {hint}")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(draft)], check=True)
        archive.unlink()
    fetch.publish(draft, root)
