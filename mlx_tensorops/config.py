"""Every switch of the package, in one table: the only place that reads environment variables."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass

from .errors import fail


@dataclass(frozen=True)
class Switch:
    """One environment variable: its name, the value without it, and what it does."""

    name: str
    default: str
    doc: str


SWITCHES = (
    Switch("MLX_TENSOROPS_ENGINE", "auto", "engine taken by engine='auto': auto | mpp | simdgroup | cpu | mlx; read when a call is first resolved"),
    Switch("MLX_TENSOROPS_DEVICE", "", "force a device profile by name (see mlx_tensorops.device.PROFILES), for tests and for reading plans of another machine"),
    Switch("MLX_TENSOROPS_FLUSHES_HALF", "0", "1: matmul2d reads half subnormals as zero on this GPU, so that float16 activations are scaled by rows; read when a call is first resolved"),
    Switch("MLX_TENSOROPS_DUMP", "", "folder that receives every rendered .metal file with its manifest"),
    Switch("MLX_TENSOROPS_CACHE", "", "folder of on-disk caches; empty: $XDG_CACHE_HOME/mlx_tensorops, else ~/.cache/mlx_tensorops"),
    Switch("MLX_TENSOROPS_THREADS", "0", "threads of the cpu engine; 0: one per core this process may use"),
    Switch("MLX_TENSOROPS_HOSTMETAL_CLANG", "", "clang >= 19 used by hostmetal instead of the one in the ziglang package"),
    Switch("MLX_TENSOROPS_BUILD_LOG", "", "file that receives one line per kernel that hostmetal really compiles"),
)

contexts: list[ContextVar] = []  # what changes the answer to a call beside its arguments: modules append theirs when they are imported

_BY_NAME = {switch.name: switch for switch in SWITCHES}


def get(name: str) -> str:
    """Value of a switch now: the environment's, else (also where that is empty) its default. Unknown names are an error."""
    switch = _BY_NAME.get(name)
    if switch is None:
        fail("config", f"{name} is not a switch", nearest=", ".join(_BY_NAME), instead="add a row to mlx_tensorops.config.SWITCHES")
    return os.environ.get(name) or switch.default


def flag(name: str) -> bool:
    """Whether a switch of 0 and 1 is on."""
    value = get(name)
    if value not in ("0", "1"):
        fail("config", f"{name} is {value!r}", nearest="0, 1")
    return value == "1"


def cache_home() -> str:
    """Folder under which this package keeps its on-disk caches; absolute, since a process may change its folder."""
    chosen = get("MLX_TENSOROPS_CACHE")
    if not chosen:
        chosen = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "mlx_tensorops")
    path = os.path.expanduser(chosen)
    if path.startswith("~"):
        fail("config", f"{path} cannot be found: this user has no home folder", instead="set MLX_TENSOROPS_CACHE to a folder that can be written")
    return os.path.abspath(path)


def table() -> list[tuple[str, str, str]]:
    """(name, value now, doc) of every switch, for ``doctor``."""
    return [(s.name, get(s.name), s.doc) for s in SWITCHES]
