"""The route through ``mx.fast.metal_kernel``: simple kernels, and dense GEMM where no extension fits the installed MLX.

MLX's call counts threads, clamps the threadgroup to the grid, and binds arrays of fewer than 8 elements in another
address space. This wrapper counts threadgroups, multiplies itself, demands exact multiples and pads small inputs, so
that a kernel always sees whole threadgroups and ``const device T*``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Sequence

from .. import signature
from ..errors import ShapeError, fail
from ..shaders.render import render_fast
from ..variant import VariantSet
from . import _enqueue

DEVICE_ELEMENTS = 8  # MLX binds inputs with fewer elements as ``constant`` (backend/common/metal_kernel.cpp)
MAX_THREADS = 1024  # per threadgroup, Metal feature set tables
MAX_AXIS = 2**31 - 1  # MLX holds the grid, in threads, as int32


class ThreadgroupKernel:
    """A custom kernel launched by threadgroup counts.

    Args:
        name: kernel name, letters, digits and underscores.
        inputs, outputs: argument names in the body.
        source: body of the kernel. It must not mention ``<input>_shape``, ``_strides`` or ``_ndim``: small inputs are padded.
        header: text before the kernel.
        factory: what builds the kernel: ``mx.fast.metal_kernel`` or ``hostmetal.metal_kernel``.
    """

    def __init__(self, name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str = "", *, factory=None):
        for argument in inputs:
            for suffix in ("_shape", "_strides", "_ndim"):
                if argument + suffix in source:
                    fail("metal_kernel", f"the body of {name} reads {argument + suffix}, which padding would change",
                         instead="pass the sizes in an array of their own")
        if not (source + header).isascii():
            fail("metal_kernel", f"the source of {name} is not ASCII, and MLX hands it to Metal as ASCII", instead="replace the character")
        self.name = name
        self._kernel = (factory or _fast_factory())(
            name=name, input_names=list(inputs), output_names=list(outputs), source=source, header=header, ensure_row_contiguous=True)

    def __call__(self, arrays, *, threadgroups, threads, output_shapes, output_dtypes, template=None, stream=None) -> list:
        """Launch ``threadgroups`` (x, y, z) of ``threads`` (x, y, z) each; one array per output.

        Raises:
            ShapeError: a count is not positive, a threadgroup is too large, or an axis has too many threads for MLX.
        """
        grid = tuple(g * t for g, t in zip(threadgroups, threads))
        if len(threadgroups) != 3 or len(threads) != 3 or min(*threadgroups, *threads) < 1:
            fail("metal_kernel", f"{self.name}: threadgroups {tuple(threadgroups)} of {tuple(threads)} threads", nearest="3 counts of at least 1",
                 instead="do not launch an empty grid", cls=ShapeError)
        if math.prod(threads) > MAX_THREADS:
            fail("metal_kernel", f"{self.name}: {math.prod(threads)} threads per threadgroup", nearest=str(MAX_THREADS), cls=ShapeError)
        if max(grid) > MAX_AXIS:
            fail("metal_kernel", f"{self.name}: {max(grid)} threads along one axis", nearest=str(MAX_AXIS), instead="spread the threadgroups over x, y and z",
                 cls=ShapeError)
        return self._kernel(inputs=[pad_small(a) for a in arrays], template=template, grid=grid, threadgroup=tuple(threads),
                            output_shapes=output_shapes, output_dtypes=output_dtypes, stream=stream)


def pad_small(array):
    """The array, or for fewer than 8 elements a flat copy padded with zeros to 8."""
    import mlx.core as mx

    missing = DEVICE_ELEMENTS - array.size
    if missing <= 0:
        return array
    return mx.concatenate([array.reshape(-1), mx.zeros(missing, array.dtype)])


def threadgroups_of(grid: Sequence[int], threads: Sequence[int]) -> tuple[int, ...]:
    """Threadgroup counts of a grid given in threads; an inexact multiple is refused."""
    for axis, (g, t) in enumerate(zip(grid, threads)):
        if t < 1 or g % t:
            fail("metal_kernel", f"grid axis {axis} has {g} threads, no multiple of the threadgroup's {t}",
                 nearest=str(max(t, 1) * math.ceil(g / max(t, 1))), instead="round up and return early in the kernel", cls=ShapeError)
    return tuple(g // t for g, t in zip(grid, threads))


def _fast_factory():
    """MLX's own route, or the emulator's drop-in where one is active."""
    if _enqueue.emulator() is not None:
        from ..hostmetal import metal_kernel

        return metal_kernel
    import mlx.core as mx

    return mx.fast.metal_kernel


@lru_cache(maxsize=None)
def _kernel(variant, emulated) -> ThreadgroupKernel:
    fast = render_fast(variant)
    sign = signature.of(variant)
    inputs = [b.name for b in sign.buffers if not b.output] + ["params"]
    return ThreadgroupKernel(fast.kernel, inputs, [b.name for b in sign.buffers if b.output], fast.body, fast.header)


def launch(variants: VariantSet, arrays: Sequence, stream=None) -> list:
    """The set's kernel through this route: operands are made row-contiguous, sizes are those of now.

    Degraded by what ``mx.fast.metal_kernel`` cannot carry: no gradient, no ``compile(shapeless=True)``, a copy for
    transposed operands.
    """
    import mlx.core as mx

    shapes = [a.shape for a in arrays]
    strides = [tuple(math.prod(s[i + 1:]) for i in range(len(s))) for s in shapes]
    variant = next(v for v in variants.rows if signature.of(v).when(shapes, strides, [0] * len(arrays)))
    sign = signature.of(variant)
    outputs = [(tuple(r(shapes) for r in o.shape), getattr(mx, o.element.name)) for o in sign.outputs]
    if any(0 in shape for shape, _ in outputs) or any(0 in s for s in shapes):
        return [mx.zeros(shape, dtype, stream=stream) for shape, dtype in outputs]
    params = mx.array([s.rule(shapes, strides) for s in sign.scalars], mx.int64)
    return _kernel(variant, _enqueue.emulator())(
        [*arrays, params], threadgroups=tuple(r(shapes, strides) for r in sign.grid), threads=(sign.threads, 1, 1),
        output_shapes=[shape for shape, _ in outputs], output_dtypes=[dtype for _, dtype in outputs], stream=stream)
