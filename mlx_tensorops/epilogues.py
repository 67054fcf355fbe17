"""What can follow the accumulator: ``out = activation(alpha * (a @ b) + bias) + beta * residual``, in f32, rounded once.

The one table of activations: adding one means adding one entry here. Metal text, MLX composition and float64 meaning
stand side by side, so that the three cannot drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

from .errors import fail


@dataclass(frozen=True)
class Activation:
    """One activation function.

    Attributes:
        msl: Metal statements that turn the f32 variable ``x`` into its image.
        mlx: the same on an MLX array, given ``mlx.core``.
        float64: the same on a NumPy float64 array, given ``numpy``.
        slope: bound on the derivative's magnitude: how much the function can widen an error.
    """

    msl: str
    mlx: Callable[[Any, Any], Any]
    float64: Callable[[Any, Any], Any]
    slope: float


_TANH = math.sqrt(2 / math.pi)  # tanh form of GELU: Hendrycks & Gimpel, arXiv 1606.08415

# Metal's library has no erf. Abramowitz & Stegun 7.1.26: absolute error below 1.5e-7.
_ERF_MSL = """\
const float z = fabs(x) * 0.70710678f;
const float t = 1.0f / (1.0f + 0.3275911f * z);
const float poly = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
const float erf = copysign(1.0f - poly * precise::exp(-z * z), x);
x = 0.5f * x * (1.0f + erf);"""

ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        "x = x < 0.0f ? 0.0f : x;",
        lambda mx, x: mx.maximum(x, 0),
        lambda np, x: np.maximum(x, 0), 1.0),
    "silu": Activation(
        "x = x / (1.0f + precise::exp(-x));",
        lambda mx, x: x * mx.sigmoid(x),
        lambda np, x: x / (1 + np.exp(-x)), 1.1),
    "gelu_tanh": Activation(
        f"x = 0.5f * x * (1.0f + precise::tanh({_TANH!r}f * (x + 0.044715f * x * x * x)));",
        lambda mx, x: 0.5 * x * (1 + mx.tanh(_TANH * (x + 0.044715 * x * x * x))),
        lambda np, x: 0.5 * x * (1 + np.tanh(_TANH * (x + 0.044715 * x**3))), 1.13),
    "gelu_erf": Activation(
        _ERF_MSL,
        lambda mx, x: 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5))),
        lambda np, x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x * math.sqrt(0.5))), 1.13),
}


@dataclass(frozen=True)
class Gate:
    """How the two products of a gated layer become one.

    Attributes:
        msl: Metal statements that turn the f32 variables ``x`` (gate) and ``u`` (up) into the result, in ``x``.
        mlx, float64: the same on arrays, given the module.
        slope: bound on |d result| / (|dx| * max(1, |u|) + |du| * max(1, |x|)): how much it can widen an error.
    """

    msl: str
    mlx: Callable[[Any, Any, Any], Any]
    float64: Callable[[Any, Any, Any], Any]
    slope: float


# gpt-oss's SwiGLU ("SwigluOAI" in mlx-lm): both halves clamped, a steeper sigmoid, and up shifted by one.
CLAMPED_ALPHA, CLAMPED_LIMIT = 1.702, 7.0


def _gated(name: str) -> Gate:
    """activation(gate) * up."""
    inner = ACTIVATIONS[name]
    return Gate(inner.msl + "\nx *= u;", lambda mx, x, u: inner.mlx(mx, x) * u, lambda np, x, u: inner.float64(np, x) * u, inner.slope)


GATES: dict[str, Gate] = {
    "swiglu": _gated("silu"),
    "geglu_tanh": _gated("gelu_tanh"),
    "geglu_erf": _gated("gelu_erf"),
    "swiglu_clamped": Gate(
        f"x = min(x, {CLAMPED_LIMIT!r}f);\nu = clamp(u, {-CLAMPED_LIMIT!r}f, {CLAMPED_LIMIT!r}f);\n"
        f"x = x / (1.0f + precise::exp(-{CLAMPED_ALPHA!r}f * x)) * (u + 1.0f);",
        lambda mx, x, u: _clamped(mx, mx.minimum(x, CLAMPED_LIMIT), mx.clip(u, -CLAMPED_LIMIT, CLAMPED_LIMIT)),
        lambda np, x, u: _clamped(np, np.minimum(x, CLAMPED_LIMIT), np.clip(u, -CLAMPED_LIMIT, CLAMPED_LIMIT)), 2.2),
}


def _clamped(module, x, u):
    return x / (1 + module.exp(-CLAMPED_ALPHA * x)) * (u + 1)


@dataclass(frozen=True)
class Epilogue:
    """Which parts of the formula a call has. Absent parts cost nothing.

    Attributes:
        bias: an array that broadcasts to the result is added before the activation.
        activation: a name of ACTIVATIONS, or None.
        residual: an array that broadcasts to the result is added after the activation.
        scaled: alpha and beta are given: the product and the residual are multiplied by them.
    """

    bias: bool = False
    activation: str | None = None
    residual: bool = False
    scaled: bool = False

    def __post_init__(self):
        if self.activation is not None and self.activation not in ACTIVATIONS:
            fail("matmul", f"activation {self.activation!r} is unknown", nearest=", ".join(ACTIVATIONS),
                 instead="apply the function to the result")

    def __bool__(self) -> bool:
        return self.bias or self.activation is not None or self.residual or self.scaled

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the extra inputs, in the order in which kernels take them after a and b."""
        present = (("bias", self.bias), ("residual", self.residual), ("scales", self.scaled))
        return tuple(name for name, given in present if given)

    @property
    def name(self) -> str:
        """Part of a kernel's name; "" for no epilogue."""
        parts = ("bias" * self.bias, self.activation or "", "residual" * self.residual, "scaled" * self.scaled)
        return "_".join(part for part in parts if part)


def apply_float64(np, epilogue: Epilogue, product, *, bias=None, residual=None, alpha=1.0, beta=1.0):
    """The formula in float64: the oracle of every engine's epilogue."""
    x = alpha * product
    if bias is not None:
        x = x + bias
    if epilogue.activation is not None:
        x = ACTIVATIONS[epilogue.activation].float64(np, x)
    return x + beta * residual if residual is not None else x
