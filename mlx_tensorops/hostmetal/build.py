"""MSL text -> a loaded kernel: rewrite, entry, compile, link, all cached by content."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import fail, lesson
from . import cache, headers, lint, precompiled, rewrite, signature, toolchain
from .findings import CompileError, in_metal_words
from .tokens import tokenize

MAX_SOURCE = 4 << 20
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<what>(?:fatal )?error|note): (?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Built:
    """A compiled kernel on disk."""

    path: Path
    signature: signature.Signature
    name: str


def literal(value: object) -> str:
    """A Python value as MSL text: one of NumPy or MLX counts as the number that it holds."""
    if hasattr(value, "item") and not isinstance(value, type):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, str)):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}f" if value == value and abs(value) != float("inf") else "NAN" if value != value else f"{'-' * (value < 0)}INFINITY"
    return msl_type(value)


_TYPES = {
    "bool": "bool", "bool_": "bool", "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "float16": "half", "bfloat16": "bfloat", "float32": "float",
}  # fmt: skip


def msl_type(dtype: object) -> str:
    """MSL name of a NumPy or MLX element type."""
    name = getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    if name not in _TYPES:
        fail("hostmetal", f"{dtype!r} is no element type of MSL", nearest=", ".join(_TYPES))
    return _TYPES[name]


def template_arguments(template: object) -> str:
    """``("half", 64, mx.float16)``, ``{"T": "half"}`` or the text itself -> the text between < and >."""
    if template is None:
        return ""
    if isinstance(template, str):
        return template
    values = template.values() if isinstance(template, Mapping) else template
    return ", ".join(literal(v) for v in values)


def build(
    source: str,
    kernel: str | None = None,
    *,
    checked: bool = False,
    sdk: str = "26.4",
    dialect: str = "4.0",
    template: object = None,
    function_constants: Mapping[int, object] | None = None,
    include: Sequence[str | os.PathLike] = (),
    family: str = "hostmetal",
    name: str = "kernel.metal",
) -> Built:
    """Compiles, unless the cache has it. Raises CompileError with Metal's kind of complaint."""
    if not isinstance(source, str):
        fail("hostmetal", f"the source is a {type(source).__name__}", nearest="MSL text", instead="Path(...).read_text()")
    if sdk not in toolchain.SDKS:
        fail("hostmetal", f"sdk={sdk!r} is unknown", nearest=", ".join(toolchain.SDKS))
    if dialect not in toolchain.DIALECTS:
        fail("hostmetal", f"dialect={dialect!r} is unknown", nearest=", ".join(toolchain.DIALECTS))
    if len(source) > MAX_SOURCE:
        fail("hostmetal", f"the source has {len(source)} characters", nearest=f"at most {MAX_SOURCE}", cls=CompileError)
    if "\0" in source:
        fail("hostmetal", "the source holds a NUL character", cls=CompileError)
    tokens = tokenize(source)
    lint.check_tokens(source, tokens, dialect)
    new = rewrite.rewrite(source, tokens)
    others = headers.reachable(source, include)
    chosen, instance = _choose(signature.kernels(source, tokens), others, kernel, new.instantiations, template_arguments(template))
    given = {str(k): literal(v) for k, v in (function_constants or {}).items()}
    in_headers, asked = others.function_constants()  # a header has constants of many kernels; Metal asks only for those in use
    for constant, index in new.function_constants.items():
        if index not in given and constant not in new.optional_constants | asked:
            key = index if index.isdigit() else repr(index)
            fail("hostmetal", f"function constant {index} ({constant}) has no value", instead=f"function_constants={{{key}: ...}}", cls=CompileError)
    values = rewrite.defined(new.function_constants | in_headers, given, "0")
    text = f'{values}#line 1 "{name}"\n{new.text}\n#line 1 "entry"\n{signature.entry(chosen, instance)}'
    flags = [*toolchain.kernel_flags(checked=checked, sdk=sdk, dialect=dialect)]
    if others.files:
        flags.append(f"-I{others.folder()}")
    tools = toolchain.find()
    runtime = cache.runtime_path()
    key = cache.key_of(text, flags, tools.name, toolchain.content_hash(toolchain.INCLUDE), runtime.name)
    path = cache.place(f"k-{key}.so")
    if not cache.present(path):
        flags = precompiled.apply(source, flags)  # before the lock of obtain(): it takes one of its own
        path = cache.obtain(path.name, lambda work, target: _compile(work, target, text, flags, chosen.name, family, key))
    return Built(path, chosen, kernel or chosen.name)


def _choose(found: list[signature.Signature], others: headers.Headers, kernel: str | None, instantiations: Mapping[str, str], arguments: str) -> tuple[signature.Signature, str]:
    if kernel is None:
        if len(found) != 1:
            fail("hostmetal", f"kernel= is needed: the source has {len(found)} kernels", nearest=_listing(found, instantiations), cls=CompileError)
        kernel = found[0].name
    instance = instantiations.get(kernel)
    base = instance.partition("<")[0].strip() if instance else kernel
    matches = [s for s in found if s.name == base] or [s for s in others.kernels() if s.name == base]
    if not matches:
        fail("hostmetal", f"the source has no kernel '{kernel}'", nearest=_listing(found, instantiations), cls=CompileError)
    if len(matches) > 1:
        fail("hostmetal", f"kernel '{kernel}' is defined {len(matches)} times; a kernel cannot be overloaded", cls=CompileError)
    if instance is None:
        instance = f"{base}<{arguments}>" if arguments else base
        if matches[0].template and not arguments:
            fail("hostmetal", f"kernel '{kernel}' is a template <{matches[0].template}>", instead='template=("half", 64)', cls=CompileError)
    return matches[0], instance


def _listing(found: list[signature.Signature], instantiations: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys([*(s.name for s in found), *instantiations])) or "none: a kernel is marked [[kernel]] or kernel and has a body"


def _compile(work: Path, target: Path, text: str, flags: Sequence[str], kernel: str, family: str, key: str) -> None:
    tools = toolchain.find()
    source, object_file = work / "kernel.cl", work / "kernel.o"
    source.write_text(text)
    toolchain.log_build(family, key)
    done = toolchain.run([*tools.clang, *flags, "-c", str(source), "-o", str(object_file)])
    if done.returncode:
        raise compile_error(kernel, done.stderr, tools.name)
    done = toolchain.run([*tools.link, "-shared", str(object_file), str(cache.runtime_path()), "-o", str(target)])
    if done.returncode:
        raise CompileError(lesson("hostmetal", f"kernel {kernel} does not link: {done.stderr.strip()[-1000:]}"))


def compile_error(kernel: str, stderr: str, compiler: str) -> CompileError:
    stderr = in_metal_words(stderr)
    lines = [f"{os.path.basename(m['file'])}:{m['line']}: {m['what']}: {m['text']}" for m in _DIAGNOSTIC.finditer(stderr)]
    shown = "\n".join(f"  {line}" for line in lines[:20]) or stderr[-2000:]
    return CompileError(f"[hostmetal] kernel {kernel} does not compile ({compiler}).\n{shown}", tuple(lines))


def load(built: Built) -> tuple[int, int]:
    """Address of the kernel's entry, and the thread limit that it declares (0: none)."""
    library = cache.load(built.path)
    entry = ctypes.cast(library.hm_kernel, ctypes.c_void_p).value
    return entry, int(library.hm_max_threads())
