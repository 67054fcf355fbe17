"""Compiling and linking for arm64 macOS."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import fetch, linker, symbols

HERE = Path(__file__).parent
VERSION = "14.0"  # oldest macOS that MLX has wheels for

# What libc++'s __config_site would say, for a libc++ of macOS. The availability annotations keep
# newer functions (std::__hash_memory) inline, which the system's library of macOS 14 does not have.
_LIBCXX = """_LIBCPP_ABI_VERSION=1 _LIBCPP_ABI_NAMESPACE=__1 _LIBCPP_HAS_THREADS=1 _LIBCPP_HAS_MONOTONIC_CLOCK=1
    _LIBCPP_HAS_TERMINAL=1 _LIBCPP_HAS_MUSL_LIBC=0 _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1 _LIBCPP_HAS_FILESYSTEM=1
    _LIBCPP_HAS_RANDOM_DEVICE=1 _LIBCPP_HAS_LOCALIZATION=1 _LIBCPP_HAS_UNICODE=1 _LIBCPP_HAS_WIDE_CHARACTERS=1
    _LIBCPP_PSTL_BACKEND_SERIAL _LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_NONE
    _LIBCPP_ASSERTION_SEMANTIC_DEFAULT=_LIBCPP_ASSERTION_SEMANTIC_IGNORE""".split()


# Libraries of which the stub is read from what MLX's own binaries import, with where a Mac has them.
_STUBBED = {
    "libc++.1.dylib": "/usr/lib/libc++.1.dylib",
    "libobjc.A.dylib": "/usr/lib/libobjc.A.dylib",
    "Accelerate": "/System/Library/Frameworks/Accelerate.framework/Versions/A/Accelerate",
}


class CompileError(Exception):
    """A file that does not compile for macOS; the text is the compiler's."""


class LinkError(Exception):
    """A strict link that failed; the text is the linker's."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler, the macOS MLX it compiles against, and a nanobind."""

    mlx: Path
    nanobind: Path
    nanobind_version: str

    @classmethod
    def make(cls, nanobind_version: str | None = None) -> Toolchain:
        version = nanobind_version or fetch.pin("nanobind")
        return cls(fetch.mac_mlx(), fetch.nanobind(version), version)

    def compile(self, sources: list[Path]) -> list[Path]:
        """Objects of the sources, in order; compiled in parallel, or taken from the cache."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(self._compile, sources))

    def nanobind_object(self) -> Path:
        """nanobind itself, as one file."""
        return self.compile([self.nanobind / "src" / "nb_combined.cpp"])[0]

    def _compile(self, source: Path) -> Path:
        flags = self._flags(source)
        digest = hashlib.sha256(" ".join([*flags, *self._names()]).encode())
        for file in (source, *_headers(source)):
            digest.update(file.read_bytes())
        target = fetch.CACHE / "objects" / f"{source.stem}-{digest.hexdigest()[:24]}.o"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_suffix(f".{os.getpid()}.part")
            done = subprocess.run([*flags, "-c", str(source), "-o", str(draft)], capture_output=True, text=True)
            if done.returncode:
                raise CompileError(done.stderr.strip())
            draft.replace(target)
        return target

    def _names(self) -> list[str]:
        return [fetch.pin("mlx"), self.nanobind_version, sys.version]

    def _flags(self, source: Path) -> list[str]:
        # The clang inside zig, not `zig c++`: that one builds a libc++ for the target first, for minutes.
        zig = zig_root()
        include = [zig / "lib/libcxx/include", zig / "lib/libcxxabi/include", zig / "lib/include",
                   zig / "lib/libc/include/any-darwin-any", self.mlx / "include", self.mlx / "include/metal_cpp",
                   HERE / "stubs", self.nanobind / "include", self.nanobind / "ext/robin_map/include",
                   Path(sysconfig.get_path("include"))]
        defines = [*_LIBCXX, "_METAL_", "NDEBUG", "NB_DOMAIN=mlx", "MLX_TENSOROPS_HAS_CPU_KERNELS=1",
                   f'MLX_TENSOROPS_MLX_VERSION="{fetch.pin("mlx")}"',
                   f'MLX_TENSOROPS_NANOBIND_VERSION="{self.nanobind_version}"']
        own = self.nanobind not in source.parents
        # A branch for one platform leaves the other's parameters unused.
        strict = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
        return [str(zig / "zig"), "clang", f"--target=arm64-apple-macos{VERSION}", "-std=c++20", "-O2", "-fPIC",
                "-fvisibility=hidden", "-nostdinc", *(f"-isystem{path}" for path in include),
                f"-I{fetch.ROOT}", f"-I{fetch.ROOT / 'cpp'}", *(f"-D{name}" for name in defines),
                *(strict if own else ["-DNB_BUILD", "-fno-strict-aliasing", "-w"])]

    def link(self, objects: list[Path], bundle: Path) -> None:
        """A loadable bundle in which every symbol is found; `-undefined dynamic_lookup` would find them all."""
        stubs = self._stubs(bundle.parent)
        command, environment = linker.find()
        done = subprocess.run(
            [*command, "-arch", "arm64", "-platform_version", "macos", VERSION, VERSION, "-bundle",
             *map(str, objects), str(self.mlx / "lib/libmlx.dylib"), *map(str, stubs),
             "-rpath", "@loader_path/../mlx/lib", f"@{self.nanobind / 'cmake/darwin-ld-cpython.sym'}", "-o", str(bundle)],
            capture_output=True, text=True, env=environment)
        if done.returncode or "error:" in done.stderr:
            raise LinkError(done.stderr.strip())

    def elsewhere(self) -> dict[str, set[str]]:
        """Symbols that a Mac provides besides libmlx, by provider."""
        bound: dict[str, set[str]] = {}
        for file in (self.mlx / "lib/libmlx.dylib", *self.mlx.glob("core.*.so")):
            for library, names in symbols.MachO(file).imports().items():
                bound.setdefault(library, set()).update(names)
        python = (self.nanobind / "cmake/darwin-ld-cpython.sym").read_text()
        return {
            "python": set(re.findall(r"^-U (\S+)", python, re.M)),
            "libSystem.B.dylib": set(re.findall(r"_[\w$]+", _libsystem())),
            **{library: bound[library] | _listed(library) for library in _STUBBED},
        }

    def _stubs(self, folder: Path) -> list[Path]:
        """Text stubs of the system's libraries, for the linker."""
        texts = {"libSystem.tbd": _libsystem()}
        elsewhere = self.elsewhere()
        for library, install_name in _STUBBED.items():
            quoted = ", ".join(f"'{symbol}'" for symbol in sorted(elsewhere[library]))
            texts[f"{library}.tbd"] = (
                f"--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '{install_name}'\n"
                f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {quoted} ]\n...\n")
        for name, text in texts.items():
            (folder / name).write_text(text)
        return [folder / name for name in texts]


def zig_root() -> Path:
    """Folder of the ziglang package."""
    try:
        import ziglang
    except ImportError:
        raise fetch.Unreachable("ziglang is not installed: pip install 'mlx_tensorops[hostmetal]'") from None
    return Path(ziglang.__file__).parent


def _libsystem() -> str:
    """zig's stub of libSystem. It lists arm64e, whose symbols arm64 has too, and a target lld 19 does not know."""
    text = (zig_root() / "lib/libc/darwin/libSystem.tbd").read_text()
    return re.sub(r"\barm64e-", "arm64-", re.sub(r"arm64e\.x1-\w+,?\s*", "", text))


def _listed(library: str) -> set[str]:
    """Symbols of stubs/<library>.txt, which says for each library why they may be relied on."""
    path = HERE / "stubs" / f"{library}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def _headers(source: Path) -> list[Path]:
    """Every header of ours that the source may include; the core takes one of cpp/cpu."""
    if fetch.ROOT not in source.parents:
        return []
    cpp = fetch.ROOT / "cpp"
    shared = cpp.rglob("*.h") if source.parent == cpp / "cpu" else [*cpp.glob("*.h"), *cpp.glob("cpu/bind.h")]
    return sorted([*HERE.glob("stubs/*/*.h"), *shared, *fetch.ROOT.glob("mlx_tensorops/hostmetal/runtime/*.h")])
