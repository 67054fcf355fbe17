"""Helpers that print Metal: each fact of the language's spelling stands here once."""

from __future__ import annotations

from ..signature import Signature

# Fields of matmul2d_descriptor in the order of its constructor (MPPTensorOpsMatMul2d.h, SDK 26.2).
_DESCRIPTOR_FIELDS = ("m", "n", "k", "transpose_left", "transpose_right", "relaxed_precision", "mode")

# The indices a kernel can ask for: our name -> (type, Metal's attribute).
BUILTINS = {
    "block": ("uint3", "threadgroup_position_in_grid"),
    "simdgroup": ("uint", "simdgroup_index_in_threadgroup"),
    "lane": ("uint", "thread_index_in_simdgroup"),
    "thread_index": ("uint", "thread_index_in_threadgroup"),
}


def literal(value) -> str:
    """A Python value as Metal writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value!r}f"
    return str(value)


def descriptor(*, m, n, k, transpose_left=False, transpose_right=False, relaxed_precision=False) -> str:
    """A matmul2d_descriptor expression, its fields given by name.

    Always multiply_accumulate on a zeroed destination: header prose and users disagree on whether
    ``multiply`` overwrites, and both readings agree on this form. ``k`` = 0 asks for a dynamic K (0 itself is no
    such request in any released header).
    """
    given = dict(m=m, n=n, k=k or "static_cast<int>(metal::dynamic_extent)", transpose_left=transpose_left, transpose_right=transpose_right,
                 relaxed_precision=relaxed_precision, mode="mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate")
    lines = []
    for field in _DESCRIPTOR_FIELDS:
        text = literal(given[field])
        lines.append(text if field in "mnk" or field == "mode" else f"/*{field}=*/{text}")
    return "mpp::tensor_ops::matmul2d_descriptor(\n      " + ", ".join(lines[:3]) + ",\n      " + ", ".join(lines[3:6]) + ",\n      " + lines[6] + ")"


def params_struct(signature: Signature) -> str:
    """The scalar block as a struct."""
    fields = "\n".join(f"  {s.c_type} {s.name};" for s in signature.scalars)
    return f"struct {signature.params} {{\n{fields}\n}};"


def kernel_head(name: str, signature: Signature) -> str:
    """Attributes, name and argument list of the kernel, up to the opening brace.

    Inputs are ``const device T* __restrict``, so that the compiler may reorder and widen their loads. Of a pointer that is
    restrict, LLVM assumes that no call changes what it has seen there, a barrier's call included; so what threads hand to each
    other is not.
    """
    arguments = []
    for index, b in enumerate(signature.buffers):
        const = "" if b.output else "const "
        restrict = "" if b.read_back else "__restrict "
        arguments.append(f"{const}device {b.element.msl}* {restrict}{b.name} [[buffer({index})]]")
    arguments.append(f"constant {signature.params}& p [[buffer({len(signature.buffers)})]]")
    for index in signature.builtins:
        kind, attribute = BUILTINS[index]
        arguments.append(f"{kind} {index} [[{attribute}]]")
    joined = ",\n    ".join(arguments)
    return f"[[kernel, max_total_threads_per_threadgroup({signature.threads})]] void {name}(\n    {joined}) {{"


def fast_kernel_prologue(signature: Signature) -> str:
    """The same names for a body that ``mx.fast.metal_kernel`` wraps: scalars come as an int64 array."""
    lines = [f"  {signature.params} p;"]
    lines += [f"  p.{s.name} = {s.c_type}(params[{i}]);" for i, s in enumerate(signature.scalars)]
    for index in signature.builtins:
        kind, attribute = BUILTINS[index]
        lines.append(f"  const {kind} {index} = {attribute};")
    return "\n".join(lines)
