"""doctor(): one screen about this machine and this installation: what is on, what is off, what to install."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from dataclasses import dataclass

from . import config
from .version import __version__


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    ok: bool
    text: str


@dataclass(frozen=True)
class Report:
    """What ``doctor()`` found. ``print`` it, or read ``findings``."""

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [f"mlx_tensorops {__version__}"]
        lines += [f"  {'ok ' if f.ok else '-- '} {f.topic:<12} {f.text}" for f in self.findings]
        lines.append("  switches")
        lines += [f"    {name}={value!r}  {doc}" for name, value, doc in config.table()]
        return "\n".join(lines)


def doctor() -> Report:
    """Inspect the installation. Never raises: a probe that fails becomes a line that says so."""
    probes = (_python, _mlx, _extension, _device, _engines, _cpu, _hostmetal, _templates)
    findings: list[Finding] = []
    for probe in probes:
        topic = probe.__name__.lstrip("_")
        try:
            findings.append(Finding(topic, *probe()))
        except Exception as error:  # a broken installation is what this report is for
            findings.append(Finding(topic, False, f"{type(error).__name__}: {error}"))
    return Report(tuple(findings))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> tuple[bool, str]:
    return True, f"{platform.python_version()} on {platform.system()} {platform.machine()} ({sys.executable})"


def _mlx() -> tuple[bool, str]:
    try:
        import mlx.core as mx
    except ImportError as error:
        return False, f"{error}; install it: pip install 'mlx_tensorops[cpu]' on Linux, pip install mlx on macOS"
    return True, f"{mx.__version__}; Metal {'available' if mx.metal.is_available() else 'not available'}"


def _extension() -> tuple[bool, str]:
    from .primitives import _native

    return _native.status()


def _device() -> tuple[bool, str]:
    from . import device

    profile = device.of_stream()
    details = f"{profile.backend} {profile.architecture}".strip()
    if profile.backend == "metal":
        details += f", macOS {profile.os_version[0]}.{profile.os_version[1]}, Metal {profile.dialect}"
        details += ", neural accelerators" if profile.neural_accelerators else ", no neural accelerators"
        details += ", half subnormals read as zero" if profile.flushes_half else ""
    return True, f"{profile.name} ({details}){' [forced]' if device.forced() else ''}"


def _engines() -> tuple[bool, str]:
    from . import registry, select
    from .primitives import _enqueue
    from .spec import GemmSpec

    context = _enqueue.context()
    spec = GemmSpec("float16", "float16", "float16")
    verdicts = {e: select.check(registry.family("gemm"), spec, e, context) for e in select.ENGINES}
    return True, "f16 matmul: " + "; ".join(f"{e}: {v.reason}" for e, v in verdicts.items())


def _cpu() -> tuple[bool, str]:
    from .primitives import _cpu as engine

    info = engine.info()
    return True, ", ".join(f"{name}: {value}" for name, value in info.items())


def _hostmetal() -> tuple[bool, str]:
    if importlib.util.find_spec("numpy") is None:
        return False, "numpy is missing; install it: pip install 'mlx_tensorops[hostmetal]'"
    from .hostmetal import cache, toolchain

    return True, f"{toolchain.describe()}; kernels are kept in {cache.folder()}"


def _templates() -> tuple[bool, str]:
    found = _version("jinja2")
    return found is not None, f"jinja2 {found}" if found else "jinja2 is missing; install it: pip install jinja2"
