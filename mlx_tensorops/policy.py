"""Which of the legal engines does engine="auto" take? Taste only; legality is in select.py.

Nobody may get slower or less right by importing this package: on Metal MLX answers what MLX has, until
a paired measurement on that device shows one of our kernels to be at least as fast.
"""

from __future__ import annotations

import platform

from .device import DeviceProfile
from .policies import cpu_gemm, cpu_weighted


def order(device: DeviceProfile, *, mlx_has_it: bool = True, family: str = "gemm") -> tuple[tuple[str, str], ...]:
    """(engine, why) in the order in which ``auto`` tries them.

    Args:
        device: where the call runs.
        mlx_has_it: whether MLX has the whole function, so that falling back costs nothing.
        family: kernel family that is asked.
    """
    if device.backend == "cpu":
        entry = (cpu_gemm if family == "gemm" else cpu_weighted).choose(platform.system())
        return (("cpu", entry.why), ("mlx", "MLX's own operation")) if entry.cpu else (("mlx", entry.why),)
    if device.backend == "metal" and not mlx_has_it:
        return (
            ("mpp", "MLX has no fused form of this"),
            ("simdgroup", "MLX has no fused form of this"),
            ("mlx", "composed of MLX operations"),
        )
    return (("mlx", "no paired measurement on this device shows another engine to be as fast"),)
