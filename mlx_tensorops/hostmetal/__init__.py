"""Runs Metal compute kernels on this CPU, strictly: an emulator, not a GPU.

    from mlx_tensorops import hostmetal

    kernel = hostmetal.compile(source, "add_one", checked=True)
    result = kernel.dispatch(grid=4, threadgroup=64, buffers=[x, y])
    result.outputs[1]

``compile`` compiles MSL text with clang; ``Kernel.dispatch`` runs it and raises HostMetalError for races,
out-of-bounds accesses, uninitialised reads, divergence and the like. ``active()`` makes the engines of this
package that are written in MSL run here. ``metal_kernel`` stands in for ``mx.fast.metal_kernel``.
"""

from .active import Active, active, current
from .findings import CompileError, Finding, HostMetalError, ToolchainError
from .kernel import Counters, Kernel, Result, compile
from .lint import Complaint, lint
from .metal_kernel import metal_kernel
from .options import Options

__all__ = ["Active", "Complaint", "CompileError", "Counters", "Finding", "HostMetalError", "Kernel", "Options", "Result", "ToolchainError", "active", "compile", "current", "lint", "metal_kernel"]
