"""May this engine run this problem here? Legality only, always with the reason; taste is in policy.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .device import DeviceProfile
from .errors import EngineError, fail

ENGINES = ("mpp", "simdgroup", "cpu", "mlx")

METAL_3_1_SINCE = (14, 0)  # macOS whose compiler takes bfloat and everything else engine simdgroup's kernels use
SIMDGROUP_MATRIX_SINCE = 13  # GPU generation of the M1 and A14 (Apple7), Metal feature set tables

# First (major, minor) macOS whose headers have left/right input cooperative tensors (SDK 26.2).
INPUT_COOPERATIVE_TENSORS_SINCE = (26, 2)


@dataclass(frozen=True)
class Verdict:
    """Whether an engine is legal, and why (not)."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Context:
    """Where a call would run.

    Attributes:
        device: profile of the stream's device.
        emulated: whether Metal kernels run in hostmetal here.
        native: whether the compiled extension fits this MLX, and the text that says so.
    """

    device: DeviceProfile
    emulated: bool
    native: Verdict


def check_name(op: str, engine: str, given_as: str = "engine") -> None:
    """Refuse an engine name that does not exist."""
    if engine != "auto" and engine not in ENGINES:
        fail(op, f"{given_as} {engine!r} is unknown", nearest=", ".join(("auto",) + ENGINES), cls=EngineError)


def check(family: Any, spec: Any, engine: str, context: Context) -> Verdict:
    """Whether ``engine`` may run ``spec`` in ``context``. All reasons against it, joined."""
    if engine == "mlx":
        return _mlx(spec, context)
    reasons = list(family.legal(spec, engine))
    if engine == "cpu":
        reasons += _cpu(context)
    else:
        reasons += _metal(family, spec, engine, context)
    return Verdict(not reasons, "; ".join(reasons) if reasons else "legal")


def _mlx(spec: Any, context: Context) -> Verdict:
    if spec.precision == "exact" and "float32" in spec.operands and context.device.neural_accelerators:
        return Verdict(True, "legal, but MLX multiplies f32 with about 11 significant bits on this GPU unless MLX_ENABLE_TF32=0")
    return Verdict(True, "legal: MLX's own operation" if spec.mlx_has_it else "legal: composed of MLX operations")


def _cpu(context: Context) -> list[str]:
    reasons = []
    if context.device.backend != "cpu":
        reasons.append(f"the stream runs on {context.device.backend}, and this engine serves CPU streams only")
    if not context.native.ok:
        reasons.append(context.native.reason)
    return reasons


def _metal(family: Any, spec: Any, engine: str, context: Context) -> list[str]:
    reasons = []
    if engine not in {e for e, _ in family.templates}:
        reasons.append(f"family {family.name} has no kernel for engine {engine}")
    elif not context.native.ok and not family.fast_route:
        reasons.append(context.native.reason)
    if context.emulated:
        return reasons
    device = context.device
    if device.backend != "metal":
        reasons.append(f"the stream runs on {device.backend}, not on Metal; inside hostmetal.active() the kernel runs emulated")
    elif engine == "mpp":
        reasons += _cooperative_tensors(device)
    elif engine == "simdgroup":
        reasons += _simdgroup_matrix(device)
    return reasons


def _simdgroup_matrix(device: DeviceProfile) -> list[str]:
    reasons = []
    if device.virtual:
        reasons.append("a virtual GPU has no simdgroup_matrix")
    elif device.generation < SIMDGROUP_MATRIX_SINCE:
        reasons.append(f"GPU generation {device.generation} has no simdgroup_matrix; it came with generation {SIMDGROUP_MATRIX_SINCE}")
    if device.os_version < METAL_3_1_SINCE:
        reasons.append(f"macOS {version(device.os_version)} has no Metal 3.1; it came with {version(METAL_3_1_SINCE)}")
    return reasons


def version(pair: tuple[int, int]) -> str:
    """(14, 0) -> "14.0"."""
    return ".".join(map(str, pair))


def target_keys(device: DeviceProfile) -> tuple[str, ...]:
    """What a kernel for this device may be made of: "metal4" where cooperative tensors are known to work."""
    if device.backend != "metal":
        return ()
    return ("metal", "gpu") if _cooperative_tensors(device) else ("metal", "gpu", "metal4")


def _cooperative_tensors(device: DeviceProfile) -> list[str]:
    reasons = []
    if device.virtual:
        reasons.append("a virtual GPU has no cooperative tensors")
    if device.os_version < INPUT_COOPERATIVE_TENSORS_SINCE:
        have, need = version(device.os_version), version(INPUT_COOPERATIVE_TENSORS_SINCE)
        reasons.append(f"macOS {have} has no input cooperative tensors; they need {need}")
    if not device.neural_accelerators and not device.virtual:
        reasons.append(f"GPU generation {device.generation} has no neural accelerators, and no value probe has passed here")
    return reasons
