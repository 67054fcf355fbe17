"""``python -m mlx_tensorops hostmetal run kernel.metal ...`` and ``... lint kernel.metal``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import TensorOpsError, fail
from . import toolchain
from .abi import LAYOUTS
from .findings import HostMetalError
from .kernel import compile
from .lint import lint

_BUFFER_HELP = """one per [[buffer(n)]], in order: FILE.npy; TYPE:SHAPE[:FILL], as f16:64x64:normal or i32:16:zeros
(fills: zeros, ones, arange, normal); or a number for a scalar"""
_ELEMENTS = {"f16": "float16", "f32": "float32", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mlx_tensorops hostmetal", description="Run or check Metal compute kernels on this CPU (emulated).")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="compile a kernel and dispatch it once")
    run.add_argument("source", type=Path)
    run.add_argument("--kernel", help="kernel or host name; may be left out when the file has one")
    run.add_argument("--grid", required=True, help="threadgroups, as 4 or 4,2,1")
    run.add_argument("--threadgroup", required=True, help="threads per threadgroup")
    run.add_argument("--buffer", action="append", default=[], help=_BUFFER_HELP)
    run.add_argument("--threadgroup-memory", action="append", default=[], metavar="N=BYTES")
    run.add_argument("--template", help="template arguments, as 'half, 64'")
    run.add_argument("--constant", action="append", default=[], metavar="N=VALUE", help="function constant")
    run.add_argument("--fast", action="store_true", help="without access checks")
    run.add_argument("--layout", choices=LAYOUTS, default="nax")
    run.add_argument("--order-seed", type=int, default=0)
    run.add_argument("--timeout", type=float, default=60.0)
    run.add_argument("--save", type=Path, help="folder for the buffers that the kernel wrote, as buffer<n>.npy")
    check = commands.add_parser("lint", help="what Metal's compiler would refuse")
    check.add_argument("source", type=Path)
    for command in (run, check):
        command.add_argument("--include", action="append", default=[], help="folder of headers")
        command.add_argument("--dialect", choices=toolchain.DIALECTS, default="4.0")
        command.add_argument("--sdk", choices=toolchain.SDKS, default="26.4")
        command.add_argument("--json", action="store_true")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+([,x]\d+){0,2}", text):
        fail("hostmetal", f"'{text}' is no size", nearest="one to three integers, as 4 or 4,2,1")
    return tuple(int(n) for n in re.split("[,x]", text))


def _pairs(items: Sequence[str]) -> dict[int, str]:
    pairs = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key.isdigit():
            fail("hostmetal", f"'{item}' is no N=VALUE", nearest="as 0=512")
        pairs[int(key)] = value
    return pairs


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        fail("hostmetal", f"'{text}' is no number of bytes", nearest="a multiple of 16")
    return int(text)


def _buffer(text: str) -> Any:
    import numpy as np

    if text.endswith(".npy"):
        try:
            return np.load(text)
        except ValueError as why:
            fail("hostmetal", f"{text} is no array: {why}")
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)(?::(\w+))?", text)
    if match and match[1] in _ELEMENTS:
        dtype, shape = np.dtype(_ELEMENTS[match[1]]), tuple(int(n) for n in match[2].split("x"))
        fills = {
            "zeros": lambda: np.zeros(shape, dtype),
            "ones": lambda: np.ones(shape, dtype),
            "arange": lambda: np.arange(int(np.prod(shape))).reshape(shape).astype(dtype),
            "normal": lambda: np.random.default_rng(0).standard_normal(shape).astype(dtype),
        }
        if (match[3] or "zeros") in fills:
            try:
                return fills[match[3] or "zeros"]()
            except (MemoryError, ValueError) as why:
                fail("hostmetal", f"buffer '{text}' cannot be made: {why}")
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            fail("hostmetal", f"'{text}' is no buffer", nearest=_BUFFER_HELP.replace("\n", " "))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as why:
        fail("hostmetal", f"{path} is no text: {why}")


def _run(options: argparse.Namespace) -> int:
    import numpy as np

    kernel = compile(
        _text(options.source), options.kernel, checked=not options.fast, sdk=options.sdk, dialect=options.dialect, template=options.template,
        function_constants=_pairs(options.constant), include=options.include)
    result = kernel.dispatch(
        grid=_sizes(options.grid), threadgroup=_sizes(options.threadgroup), buffers=[_buffer(b) for b in options.buffer],
        threadgroup_memory={n: _whole(size) for n, size in _pairs(options.threadgroup_memory).items()}, layout=options.layout,
        order_seed=options.order_seed, timeout=options.timeout, allow_findings=True)
    written = {p.name: value for p, value in zip(kernel.buffers, result.outputs) if p.writable}
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        for p, value in zip(kernel.buffers, result.outputs):
            if p.writable:
                np.save(options.save / f"buffer{p.index}.npy", value)
    if options.json:
        print(json.dumps({"kernel": kernel.name, "findings": [dataclasses.asdict(f) for f in result.findings], "counters": dataclasses.asdict(result.counters)}))
    else:
        for name, value in written.items():
            print(f"{name}: {np.array2string(np.asarray(value).ravel()[:8], precision=5)} ... {np.asarray(value).shape}")
        print("counters:", ", ".join(f"{k}={v}" for k, v in dataclasses.asdict(result.counters).items() if v))
        print(HostMetalError(kernel.name, result.findings) if result.findings else "no findings (emulated; not run on Metal)")
    return 1 if result.findings else 0


def _lint(options: argparse.Namespace) -> int:
    found = lint(_text(options.source), dialect=options.dialect, sdk=options.sdk, include=options.include, name=options.source.name)
    if options.json:
        print(json.dumps([dataclasses.asdict(c) for c in found]))
    else:
        print("\n".join(f"{options.source.name}: {c}" for c in found) or f"{options.source.name}: nothing to complain about")
    return 1 if found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """0: clean; 1: findings or complaints; 2: an error, on stderr."""
    options = _parser().parse_args(argv)
    try:
        return _run(options) if options.command == "run" else _lint(options)
    except (TensorOpsError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
