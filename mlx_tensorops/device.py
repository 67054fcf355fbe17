"""What machine a stream runs on: one frozen DeviceProfile, detected or forced.

Nothing here asks MLX anything at import. A profile can be forced (``force("m5")``, or the switch
MLX_TENSOROPS_DEVICE) to read the plans of a machine that is not at hand, or in tests.

Architecture names are ``applegpu_g<generation><class>``; classes: p phone, g base and M-series, s Pro
and Max, d Ultra, c rare. Seen in public device reports: A17 Pro g16p, A18 Pro g17p, M4 Pro g16s,
M5 g17g, M5 Pro/Max g17s. Neural accelerators: generation >= 17, phones >= 18 (the rule of MLX
0.32.4's ``is_nax_available``).
"""

from __future__ import annotations

import contextlib
import platform
import re
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache

from . import config
from .errors import DTypeError, TensorOpsError, fail

_ARCHITECTURE = re.compile(r"applegpu_g(\d+)([a-z])$")


@dataclass(frozen=True)
class DeviceProfile:
    """A machine, as far as engine selection needs to know it.

    Attributes:
        name: short name, e.g. ``"m5"``.
        backend: ``"cpu"``, ``"metal"`` or ``"cuda"``.
        architecture: MLX's ``device_info()["architecture"]``.
        os_version: (major, minor) of macOS or iOS; (0, 0) elsewhere.
        virtual: a paravirtual GPU (macOS in a virtual machine): no cooperative tensors.
        bandwidth: main-memory bytes per second as the maker publishes it, or None.
        half_flops: peak f16 matmul FLOP/s, or None where nobody published one.
        source: where the two peaks come from.
        flushes_half: whether matmul2d reads half subnormals as zero. Nobody has published it for any Apple GPU: unmeasured, so False unless
            the user says so, by a profile of ``force`` or the switch MLX_TENSOROPS_FLUSHES_HALF.
    """

    name: str
    backend: str
    architecture: str = ""
    os_version: tuple[int, int] = (0, 0)
    virtual: bool = False
    bandwidth: float | None = None
    half_flops: float | None = None
    source: str = ""
    flushes_half: bool = False

    def __post_init__(self):
        if self.backend not in ("cpu", "metal", "cuda"):
            fail("device", f"backend {self.backend!r} is unknown", nearest="cpu, metal, cuda")

    @property
    def generation(self) -> int:
        """GPU generation out of the architecture name; 0 when it has none."""
        return parse_architecture(self.architecture)[0]

    @property
    def gpu_class(self) -> str:
        """Class letter out of the architecture name; "" when it has none."""
        return parse_architecture(self.architecture)[1]

    @property
    def neural_accelerators(self) -> bool:
        """Whether this GPU generation has matrix hardware behind matmul2d."""
        return self.backend == "metal" and self.generation >= (18 if self.gpu_class == "p" else 17)

    @property
    def dialect(self) -> str:
        """Metal language version MLX asks the OS's compiler for (MLX device.cpp): 4.1, 4.0, 3.2 or 3.1."""
        major = self.os_version[0]
        return "4.1" if major >= 27 else "4.0" if major >= 26 else "3.2" if major >= 15 else "3.1"


def parse_architecture(name: str) -> tuple[int, str]:
    """(generation, class letter); (0, "") for a name that is not an Apple GPU's."""
    match = _ARCHITECTURE.match(name)
    return (int(match[1]), match[2]) if match else (0, "")


_APPLE = "bandwidth: Apple's product pages"
_M5 = "bandwidth: Apple's product page; peak: 15.4 TFLOP/s reported for a base M5 in a public MLX issue"


def _metal(name, architecture, os_version=(26, 2), bandwidth=None, half_flops=None, source=_APPLE):
    return DeviceProfile(name, "metal", architecture, os_version, False, bandwidth, half_flops, source)


PROFILES: dict[str, DeviceProfile] = {
    p.name: p
    for p in (
        _metal("m1", "applegpu_g13g", bandwidth=68.25e9),
        _metal("m2", "applegpu_g14g", bandwidth=100e9),
        _metal("m3", "applegpu_g15g", bandwidth=100e9),
        _metal("m4", "applegpu_g16g", bandwidth=120e9),
        _metal("m4-pro", "applegpu_g16s", bandwidth=273e9),
        _metal("m5", "applegpu_g17g", bandwidth=153e9, half_flops=15.4e12, source=_M5),
        _metal("m5-max", "applegpu_g17s"),
        _metal("m5-os27", "applegpu_g17g", (27, 0), 153e9, 15.4e12, _M5),
        _metal("m5-os26.0", "applegpu_g17g", (26, 0), 153e9, 15.4e12, _M5),
        _metal("a17-pro", "applegpu_g16p"),
        _metal("a18-pro", "applegpu_g17p"),
        _metal("a19", "applegpu_g18p"),
        DeviceProfile("virtual-gpu", "metal", "applegpu_virtual", (26, 2), virtual=True),
        DeviceProfile("linux-cpu", "cpu", "x86_64"),
        DeviceProfile("cuda", "cuda"),
    )
}

_forced: ContextVar[DeviceProfile | None] = ContextVar("forced_device", default=None)
config.contexts.append(_forced)
forced_here = _forced.get  # cheap enough for the warm path of every call


def profile(name: str) -> DeviceProfile:
    """The profile of that name, or an error that lists the known ones."""
    found = PROFILES.get(name) if isinstance(name, str) else None
    if found is None:
        fail("device", f"no profile is called {name!r}", nearest=", ".join(PROFILES), cls=TensorOpsError)
    return found


@contextlib.contextmanager
def force(which: str | DeviceProfile):
    """Within the block every stream counts as this device (a name of PROFILES, or a profile)."""
    if not isinstance(which, DeviceProfile):
        which = profile(which)
    token = _forced.set(which)
    try:
        yield _forced.get()
    finally:
        _forced.reset(token)


def forced() -> DeviceProfile | None:
    """The forced profile, if any: the block's, else the switch's."""
    current = _forced.get()
    if current is None and config.get("MLX_TENSOROPS_DEVICE"):
        return profile(config.get("MLX_TENSOROPS_DEVICE"))
    return current


def of_stream(stream=None) -> DeviceProfile:
    """Profile of the device a stream (or Device, or None for the default) runs on."""
    gpu = is_gpu(stream)
    found = forced() or _detect(gpu)
    return replace(found, flushes_half=True) if config.flag("MLX_TENSOROPS_FLUSHES_HALF") else found


@lru_cache(maxsize=1)
def has_gpu() -> bool:
    """Whether this MLX has a GPU at all; a machine does not grow one."""
    import mlx.core as mx

    return mx.metal.is_available() or mx.cuda.is_available()


def is_gpu(stream=None) -> bool:
    """Whether a stream, a Device, a DeviceType or None (the default device) means the GPU; anything else is an error."""
    if stream is not None and not isinstance(stream, _stream_kinds()):
        fail("device", f"stream {stream!r} is a {type(stream).__name__}", nearest="None, mx.cpu, mx.gpu, or a stream of mx.new_stream", cls=DTypeError)
    if not has_gpu():
        return False
    import mlx.core as mx

    if stream is None:
        stream = mx.default_device()
    device = getattr(stream, "device", stream)
    return getattr(device, "type", device) == mx.gpu


@lru_cache(maxsize=1)
def _stream_kinds() -> tuple[type, ...]:
    import mlx.core as mx

    return mx.Stream, mx.ThreadLocalStream, mx.Device, mx.DeviceType


_detected: dict[bool, DeviceProfile] = {}


def _detect(gpu: bool) -> DeviceProfile:
    if gpu not in _detected:
        _detected[gpu] = _detect_gpu() if gpu else DeviceProfile("cpu", "cpu", platform.machine())
    return _detected[gpu]


def _detect_gpu() -> DeviceProfile:
    import mlx.core as mx

    if not mx.metal.is_available():
        return DeviceProfile("cuda", "cuda")
    info = mx.device_info(mx.gpu)
    architecture = str(info.get("architecture", ""))
    release = platform.mac_ver()[0] or "0.0"
    major, minor = (release.split(".") + ["0"])[:2]
    virtual = "paravirtual" in str(info.get("device_name", "")).lower() or parse_architecture(architecture)[0] == 0
    known = next((p for p in PROFILES.values() if p.architecture == architecture), None)
    base = known or DeviceProfile(architecture, "metal", architecture)
    return replace(base, os_version=(int(major), int(minor)), virtual=virtual)
