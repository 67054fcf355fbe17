"""``hostmetal.compile`` and what it returns."""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import fail
from . import abi, build, cache
from .buffers import Argument, argument
from .findings import Finding, HostMetalError, parse
from .options import Options

_TEXT_BYTES = 1 << 16


@dataclass(frozen=True)
class Counters:
    """What a dispatch did. Traffic (bytes) needs ``checked=True`` and is 0 without it."""

    matmul2d: int
    """run() calls, one per execution scope"""
    macs: int
    mma8x8: int
    barriers: int
    simdgroup_barriers: int
    simd_ops: int
    threadgroups: int
    threadgroup_bytes: int
    """most threadgroup memory that one threadgroup allocated"""
    threadgroup_load: int
    threadgroup_store: int
    thread_load: int
    """thread-private arrays, where the compiler left them in memory"""
    thread_store: int
    device_load: dict[int, int]
    """bytes per buffer index, device address space"""
    device_store: dict[int, int]
    argument_load: dict[int, int]
    """bytes per buffer index, constant address space"""
    opaque_load: dict[int, int]
    """bytes that run() and load() read of tensor operands: a lower bound, since how MPP reads is unknown"""


@dataclass(frozen=True)
class Result:
    """``outputs`` is parallel to ``buffers``: new arrays where the kernel may write, else what was passed."""

    outputs: tuple[Any, ...]
    counters: Counters
    findings: tuple[Finding, ...]


def _three(value: int | Sequence[int], what: str) -> tuple[int, int, int]:
    try:
        items = tuple(value) if hasattr(value, "__iter__") else (value,)
        items = tuple(None if isinstance(n, bool) else operator.index(n) for n in items)
    except TypeError:
        items = ()
    if not 1 <= len(items) <= 3 or None in items:
        fail("hostmetal", f"{what}={value!r}", nearest="one to three integers")
    items = items + (1,) * (3 - len(items))
    if min(items) < 1 or max(items) >= 2**32:
        fail("hostmetal", f"{what}={value!r}", nearest="from 1 to 2**32 - 1 along each axis")
    return items


class Kernel:
    """A compiled kernel. Made by :func:`compile`; ``dispatch`` runs it."""

    def __init__(self, built: build.Built, *, checked: bool, options: Options):
        self.name = built.name
        self.checked = checked
        self.options = options
        self.buffers = built.signature.buffers
        self.path = built.path
        self._signature = built.signature
        self._entry, self.max_threads = build.load(built)

    def __repr__(self) -> str:
        listing = ", ".join(f"{p.type} {p.name} [[buffer({p.index})]]" for p in self.buffers)
        return f"<hostmetal.Kernel {self.name}({listing}){' checked' if self.checked else ''}>"

    @property
    def entry_address(self) -> int:
        """Address of the ``hm_entry`` of runtime/hm_abi.h."""
        return self._entry

    def dispatch(
        self,
        *,
        grid: int | Sequence[int],
        threadgroup: int | Sequence[int],
        buffers: Sequence[Any] | Mapping[str | int, Any],
        threads: int | Sequence[int] | None = None,
        threadgroup_memory: Mapping[int, int] | Sequence[int] = (),
        allow_findings: bool = False,
        **options: Any,
    ) -> Result:
        """Runs the kernel once.

        ``grid`` counts threadgroups. ``threads`` is the total number of threads, for dispatches with partial
        threadgroups at the edges. ``buffers`` follow the order of their [[buffer(n)]], or are a mapping by name or
        index. ``options`` are fields of :class:`Options`. Raises HostMetalError for any finding, unless allowed.
        """
        arguments = self._arguments(buffers)
        chosen = replace(self.options, **self._known(options))
        launch = self._launch(_three(grid, "grid"), _three(threadgroup, "threadgroup"), threads, threadgroup_memory, arguments)
        settings = chosen.struct(checked=self.checked)
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        result = abi.Result(text_capacity=_TEXT_BYTES, text=ctypes.addressof(text))
        code = _dispatch()(ctypes.byref(launch), ctypes.byref(settings), ctypes.byref(result))
        message = text.raw[: result.text_bytes].decode(errors="replace")
        if code < 0:
            fail("hostmetal", f"{self.name}: {message}")
        findings = tuple(self._named(f) for f in parse(message))
        if code and not allow_findings:
            raise HostMetalError(self.name, findings, code)
        return Result(tuple(a.output() for a in arguments), self._counters(result.counters), findings)

    def _known(self, options: dict[str, Any]) -> dict[str, Any]:
        unknown = set(options) - set(Options.__dataclass_fields__)
        if unknown:
            fail("hostmetal", f"{sorted(unknown)[0]}= is no option of dispatch", nearest=", ".join(Options.__dataclass_fields__))
        return options

    def _arguments(self, buffers: Sequence[Any] | Mapping[str | int, Any]) -> list[Argument]:
        listing = ", ".join(f"{p.name} [[buffer({p.index})]]" for p in self.buffers) or "none"
        if isinstance(buffers, Mapping):
            known = {p.name for p in self.buffers} | {p.index for p in self.buffers}
            for key in buffers:
                if key not in known:
                    fail("hostmetal", f"{self.name} has no buffer {key!r}", nearest=listing)
            missing = [p.name for p in self.buffers if p.name not in buffers and p.index not in buffers]
            if missing:
                fail("hostmetal", f"{self.name}: buffer '{missing[0]}' is missing", nearest=listing)
            values = [buffers[p.name] if p.name in buffers else buffers[p.index] for p in self.buffers]
        else:
            if isinstance(buffers, (str, bytes)) or not hasattr(buffers, "__iter__"):
                fail("hostmetal", f"{self.name}: buffers is a {type(buffers).__name__}", nearest=f"a list, or a mapping by name or index, of {listing}")
            values = list(buffers)
            if len(values) != len(self.buffers):
                fail("hostmetal", f"{self.name} takes {len(self.buffers)} buffers, {len(values)} were given", nearest=listing)
        return [argument(p, v) for p, v in zip(self.buffers, values)]

    def _launch(self, grid, group, threads, threadgroup_memory, arguments: list[Argument]) -> abi.Launch:
        table = (abi.Buffer * max(1, len(arguments)))()
        for slot, a in zip(table, arguments):
            slot.data, slot.bytes, slot.offset = a.address, a.size, 0
            slot.index, slot.writable = a.parameter.index, int(a.parameter.writable)
        launch = abi.Launch(entry=self._entry, kernel=self.name.encode(), buffers=table, buffer_count=len(arguments), max_threads=self.max_threads)
        launch.grid[:], launch.group[:] = grid, group
        if threads is not None:
            total = _three(threads, "threads")
            wanted = tuple(-(-t // g) for t, g in zip(total, group))
            if wanted != grid:
                fail("hostmetal", f"threads={total} in threadgroups of {group} make a grid of {wanted}, not {grid}")
            launch.threads[:] = total
        if not isinstance(threadgroup_memory, (Mapping, Sequence)):
            fail("hostmetal", f"threadgroup_memory={threadgroup_memory!r}", nearest="a list of sizes, or a mapping from index to bytes")
        sizes = threadgroup_memory.items() if isinstance(threadgroup_memory, Mapping) else enumerate(threadgroup_memory)
        for index, size in sizes:
            if not isinstance(index, int) or not isinstance(size, int) or not 0 <= index < abi.MAX_BUFFERS or not 0 < size < 2**31 or size % 16:
                fail("hostmetal", f"threadgroup memory {index}: {size} bytes", nearest="a multiple of 16, index 0 to 30")
            launch.threadgroup_args[index] = size
        for p in self._signature.parameters:
            if p.role == "threadgroup" and not launch.threadgroup_args[p.index]:
                fail("hostmetal", f"{self.name}: '{p.name}' [[threadgroup({p.index})]] has no size", instead=f"threadgroup_memory={{{p.index}: bytes}}")
        return launch

    def _named(self, finding: Finding) -> Finding:
        """The runtime knows buffers by index; a reader knows them by name."""
        names = {p.index: p.name for p in self.buffers}
        if finding.buffer in names and finding.variable is None:
            return replace(finding, variable=names[finding.buffer])
        return finding

    def _counters(self, raw: abi.Counters) -> Counters:
        per_buffer = {name: {p.index: int(getattr(raw, name)[p.index]) for p in self.buffers} for name in abi.BUFFER_COUNTERS}
        argument_load = {p.index: per_buffer["device_load"].pop(p.index) for p in self.buffers if p.space == "constant"}
        return Counters(**{name: int(getattr(raw, name)) for name in abi.SCALAR_COUNTERS}, argument_load=argument_load, **per_buffer)


def _dispatch() -> Any:
    library = cache.load(cache.runtime_path())
    library.hm_dispatch.restype = ctypes.c_int
    return library.hm_dispatch


def compile(
    source: str,
    kernel: str | None = None,
    *,
    checked: bool = False,
    layout: str = "nax",
    sdk: str = "26.4",
    dialect: str = "4.0",
    template: object = None,
    function_constants: Mapping[int, object] | None = None,
    include: Sequence[str | os.PathLike] = (),
    **options: Any,
) -> Kernel:
    """Compiles one kernel of MSL text for this CPU.

    ``template`` gives the arguments of a templated kernel; an explicit instantiation is found by its host name.
    ``checked`` builds with access hooks: races, bounds, uninitialised reads and traffic. ``include`` are folders of
    headers. ``layout`` and ``options`` (see :class:`Options`) are only defaults of ``dispatch``.
    """
    built = build.build(source, kernel, checked=checked, sdk=sdk, dialect=dialect, template=template,
                        function_constants=function_constants, include=include)
    return Kernel(built, checked=checked, options=Options(layout=layout, **options))
