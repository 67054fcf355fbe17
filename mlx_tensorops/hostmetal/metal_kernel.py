"""A drop-in for ``mx.fast.metal_kernel`` that runs in the emulator.

The generated text is the one MLX hands to Metal's compiler (mlx/backend/common/metal_kernel.cpp, 0.32.4): the
address space of an input depends on its size, attributes are found by substring, and the launch counts threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..errors import fail
from . import build
from .active import current
from .kernel import Kernel
from .options import Options

CONSTANT_BELOW = 8
"""Inputs with fewer elements are passed in the constant address space."""

_SCALAR = "uint"
_VECTOR = "uint3"
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": _SCALAR, "dispatch_simdgroups_per_threadgroup": _SCALAR, "dispatch_threads_per_threadgroup": _VECTOR,
    "grid_origin": _VECTOR, "grid_size": _VECTOR, "quadgroup_index_in_threadgroup": _SCALAR, "quadgroups_per_threadgroup": _SCALAR,
    "simdgroup_index_in_threadgroup": _SCALAR, "simdgroups_per_threadgroup": _SCALAR, "thread_execution_width": _SCALAR,
    "thread_index_in_quadgroup": _SCALAR, "thread_index_in_simdgroup": _SCALAR, "thread_index_in_threadgroup": _SCALAR,
    "thread_position_in_grid": _VECTOR, "thread_position_in_threadgroup": _VECTOR, "threadgroup_position_in_grid": _VECTOR,
    "threadgroups_per_grid": _VECTOR, "threads_per_grid": _VECTOR, "threads_per_simdgroup": _SCALAR, "threads_per_threadgroup": _VECTOR,
}  # fmt: skip
_PARTS = (("_shape", "const constant int* "), ("_strides", "const constant int64_t* "), ("_ndim", "const constant int& "))


def type_name(dtype: Any) -> str:
    """Element type as MLX spells it in generated text."""
    name = str(dtype).rpartition(".")[2]
    return {"bool": "bool", "float32": "float", "complex64": "complex64_t"}.get(name, f"{name}_t")


def _template_value(value: Any) -> tuple[str, str]:
    import mlx.core as mx

    if isinstance(value, bool):
        return "bool", str(int(value))
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, mx.Dtype):
        return "typename", type_name(value)
    fail("metal_kernel", f"a template argument is a {type(value).__name__}", nearest="int, bool or a dtype")


class MetalKernel:
    """What :func:`metal_kernel` returns: call it like the object that ``mx.fast.metal_kernel`` returns."""

    def __init__(self, name: str, input_names: Sequence[str], output_names: Sequence[str], source: str, header: str, ensure_row_contiguous: bool, atomic_outputs: bool):
        if not output_names:
            fail("metal_kernel", "there are no outputs", nearest="at least one output name")
        self.name = name
        self.input_names = tuple(input_names)
        self.output_names = tuple(output_names)
        self._source, self._header = source, header
        self._contiguous, self._atomic = ensure_row_contiguous, atomic_outputs

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[Any]:
        """Runs at once (nothing is lazy here) and returns MLX arrays. ``stream`` is accepted and unused."""
        import mlx.core as mx
        import numpy as np

        for what, names, given in (("inputs", self.input_names, inputs), ("output_shapes", self.output_names, output_shapes), ("output_dtypes", self.output_names, output_dtypes)):
            if len(names) != len(given):
                fail("metal_kernel", f"{what} has {len(given)} entries", nearest=f"{len(names)}: {', '.join(names)}")
        arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
        kernel, text = self.source(arrays, output_dtypes, template)
        if verbose:
            print(f"Generated source code for `{self.name}`:\n```\n{text}\n```")
        if min(*grid, *threadgroup) < 1:
            fail("metal_kernel", f"grid={tuple(grid)}, threadgroup={tuple(threadgroup)}", nearest="at least 1 along each axis")
        fill = (lambda n: np.full(n, 0xFF, np.uint8)) if init_value is None else None
        outputs = []
        for shape, dtype in zip(output_shapes, output_dtypes):
            if fill is None:
                outputs.append(mx.full(tuple(shape), init_value, dtype))
            else:  # MLX leaves outputs uninitialised: here they hold 0xff bytes, NaN in every float type
                size = int(np.prod(shape, dtype=np.int64)) * dtype.size
                outputs.append(mx.array(fill(size)).view(dtype).reshape(tuple(shape)) if size else mx.zeros(tuple(shape), dtype))
        group = tuple(min(t, g) for t, g in zip(threadgroup, grid))
        result = self._compiled(kernel, text).dispatch(
            grid=tuple(-(-g // t) for g, t in zip(grid, group)), threadgroup=group, threads=tuple(grid), buffers=self._buffers(arrays, outputs))
        return list(result.outputs[len(result.outputs) - len(outputs) :])

    def source(self, arrays: Sequence[Any], output_dtypes: Sequence[Any], template: Sequence[tuple[str, Any]] | None = None) -> tuple[str, str]:
        """Name and text of the kernel for these inputs, as MLX generates them (without MLX's preamble)."""
        values = [(n, *_template_value(v)) for n, v in template or ()]
        listed = ", ".join(v for _, _, v in values)
        name = f"custom_kernel_{self.name}"
        if values:
            name += "_" + re.sub("<|>|, ", "_", f"<{listed}>")[:-1].replace("-", "_")
        for a in arrays:
            name += f"_{type_name(a.dtype)}" + ("s" if a.ndim == 0 else "c" if a.size < CONSTANT_BELOW else "")
        for dtype in output_dtypes:
            name += f"_{type_name(dtype)}"
        lines = [self._header]
        if values:
            lines.append(f"template <{', '.join(f'{kind} {n}' for n, kind, _ in values)}>\n")
        lines.append(f"[[kernel]] void {name}(\n")
        index = 0
        for input_name, a in zip(self.input_names, arrays):
            space = "constant" if a.size < CONSTANT_BELOW else "device"
            lines.append(f"  const {space} {type_name(a.dtype)}{'*' if a.ndim else '&'} {input_name} [[buffer({index})]],\n")
            index += 1
            for suffix, declaration in _PARTS if a.ndim else ():
                if input_name + suffix in self._source:
                    lines.append(f"  {declaration}{input_name}{suffix} [[buffer({index})]],\n")
                    index += 1
        attributes = [f"  {kind} {attribute} [[{attribute}]]" for attribute, kind in ATTRIBUTES.items() if attribute in self._source]
        for output_name, dtype in zip(self.output_names, output_dtypes):
            kind = f"atomic<{type_name(dtype)}>" if self._atomic else type_name(dtype)
            # MLX compares the buffer index with the number of arrays here, so a body with shape buffers, two outputs and
            # no attribute gets its parenthesis too early. The same text fails here as it does there.
            more = index < len(self.input_names) + len(self.output_names) - 1 or attributes
            lines.append(f"  device {kind}* {output_name} [[buffer({index})]]" + (",\n" if more else ") {\n"))
            index += 1
        lines.append(",\n".join(attributes) + (") {\n" if attributes else ""))
        lines.append(f"{self._source}\n}}\n")
        if values:
            lines.append(f'\ntemplate [[host_name("{name}")]] [[kernel]] decltype({name}<{listed}>) {name}<{listed}>;\n')
        return name, "".join(lines)

    def _compiled(self, kernel: str, text: str) -> Kernel:
        active = current()
        checked = active.checked if active else False
        options = active.options if active else Options(isolate=False)
        sdk, dialect = (active.sdk, active.dialect) if active else ("26.4", "4.0")
        built = build.build("#include <hm_mlx.h>\n#line 1\n" + text, kernel, checked=checked, sdk=sdk, dialect=dialect, name=f"{self.name}.metal")
        return Kernel(built, checked=checked, options=options)

    def _buffers(self, arrays: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        import numpy as np

        values: list[Any] = []
        for name, a in zip(self.input_names, arrays):
            memory, strides = _memory(a, self._contiguous)
            values.append(memory)
            parts = (np.array(a.shape, np.int32), np.array(strides, np.int64), np.array(a.ndim, np.int32))
            values += [part for (suffix, _), part in zip(_PARTS, parts) if a.ndim and name + suffix in self._source]
        return [*values, *outputs]


def _memory(a: Any, contiguous: bool) -> tuple[Any, tuple[int, ...]]:
    """The array, row-contiguous or as it lies, and its strides in elements."""
    import mlx.core as mx
    import numpy as np

    dense = tuple(int(np.prod(a.shape[i + 1 :], dtype=np.int64)) for i in range(a.ndim))
    if contiguous or not a.size:
        return a, dense
    raw = np.asarray(memoryview(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a))
    strides = tuple(s // raw.itemsize for s in raw.strides)
    if min(strides, default=0) < 0:
        fail("metal_kernel", "an input has negative strides", instead="ensure_row_contiguous=True")
    span = 1 + sum(s * (n - 1) for s, n in zip(strides, raw.shape))
    return np.lib.stride_tricks.as_strided(raw, (span,), (raw.itemsize,)), strides


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: object | None = None,
) -> MetalKernel:
    """The signature and the meaning of ``mx.fast.metal_kernel``; build and options come from :func:`active`.

    ``grid`` of the call counts threads, as there. ``compile_options`` is accepted and unused: math is always safe.
    """
    return MetalKernel(name, input_names, output_names, source, header, ensure_row_contiguous, atomic_outputs)
