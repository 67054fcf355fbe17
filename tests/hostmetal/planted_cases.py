"""The kernels in planted/, how to launch them, and what the clean ones compute (NumPy, float64 where it matters)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "planted"
_MARK = re.compile(r"@(\d+) (\w+)")


@dataclass(frozen=True)
class Case:
    """``make`` gives the buffers without the last one, which is the number of the fault; ``oracle`` maps an index of
    a buffer to what the clean kernel leaves in it."""

    name: str
    make: Callable[[np.random.Generator], list[Any]]
    oracle: Callable[[list[Any]], dict[int, np.ndarray]]
    grid: tuple[int, ...]
    threadgroup: tuple[int, ...]
    tolerance: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.metal").read_text()

    def buffers(self, bug: int = 0) -> list[Any]:
        return [*self.make(np.random.default_rng(7)), bug]

    def marks(self) -> dict[int, set[tuple[str, int]]]:
        """fault -> where it may be reported, as (kind, line)"""
        found: dict[int, set[tuple[str, int]]] = {}
        for number, line in enumerate(self.source.splitlines(), 1):
            for fault, kind in _MARK.findall(line.partition("//")[2]):
                found.setdefault(int(fault), set()).add((kind, number))
        return found

    def wrong(self, outputs: tuple[Any, ...]) -> bool:
        for index, wanted in self.oracle(self.buffers()).items():
            got = np.asarray(outputs[index], np.float64)
            if not np.all(np.abs(got - wanted) <= self.tolerance * max(1.0, np.abs(wanted).max())):  # NaN is wrong, too
                return True
        return False


def _stage(rng):
    return [rng.standard_normal(512).astype(np.float32), np.zeros(512, np.float32)]


def _exchange(rng):
    return [rng.integers(0, 1000, 256).astype(np.int32), np.zeros(256, np.int32), np.zeros(256, np.int32)]


def _exchange_oracle(b):
    x = b[0].reshape(4, 64)
    return {1: 2 * b[0], 2: np.roll(2 * x, -33, axis=1).ravel()}


def _reduce(rng):
    return [rng.integers(-50, 50, 512).astype(np.float32), np.zeros(4, np.float32)]


def _transpose(rng):
    return [rng.standard_normal((50, 70)).astype(np.float16), np.zeros((70, 50), np.float16), np.array([50, 70], np.int32)]


def _vector(rng):
    return [rng.standard_normal(512).astype(np.float16), np.zeros(512, np.float16)]


def _window(rng):
    return [rng.integers(-9, 9, 64).astype(np.float32), np.zeros(64, np.float32), rng.integers(5, 10, 64).astype(np.int32)]


def _window_oracle(b):
    x, pick = b[0].astype(np.float64), b[2]
    w = np.stack([x[np.clip(np.arange(64) + i - 2, 0, 63)] for i in range(5)], axis=1)
    j = pick % 5
    return {1: w[np.arange(64), j] * 2 + w[:, 2] + w[:, 1]}


def _simd(rng):
    return [rng.integers(-9, 9, 256).astype(np.float32), np.zeros(256, np.float32)]


def _simd_oracle(b):
    x = b[0].astype(np.float64).reshape(2, 4, 32)
    total = x.sum(-1, keepdims=True)
    v = x + x[..., np.arange(32) ^ 1]
    v = v + v[..., 3:4]
    v = v + v[..., np.arange(32) ^ 1]
    return {1: (v + total[:, 3:4] + total).ravel()}


def _gemm(m, n, k, dtype=np.float16):
    def make(rng):
        return [rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype), np.zeros((m, n), np.float32), np.array([m, n, k, 0], np.int32)]

    return make


def _gemm_oracle(b):
    return {2: b[0].astype(np.float64) @ b[1].astype(np.float64)}


def _scaled(rng):
    return [rng.standard_normal((128, 32)).astype(np.float16), rng.standard_normal((32, 32)).astype(np.float16), np.zeros((128, 32), np.float32), np.zeros((128, 32), np.float32)]


def _scaled_oracle(b):
    c = b[0].astype(np.float64) @ b[1].astype(np.float64)
    return {2: c, 3: 2 * c.reshape(2, -1)[:, ::-1].reshape(128, 32)}


def _memory(rng):
    return [rng.standard_normal(128).astype(np.float32), np.zeros(128, np.float32)]


CASES = [
    Case("stage", _stage, lambda b: {1: b[0].reshape(4, 128)[:, ::-1].ravel()}, (4,), (128,)),
    Case("exchange", _exchange, _exchange_oracle, (4,), (64,)),
    Case("reduce", _reduce, lambda b: {1: b[0].astype(np.float64).reshape(4, 128).sum(1)}, (4,), (128,)),
    Case("transpose", _transpose, lambda b: {1: b[0].T}, (3, 2), (32, 8)),
    Case("vector", _vector, lambda b: {1: b[0]}, (2,), (64,)),
    Case("local", _window, _window_oracle, (1,), (64,)),
    Case("simd", _simd, _simd_oracle, (2,), (128,)),
    Case("coop", _gemm(128, 64, 48), _gemm_oracle, (1, 2), (128,), 1e-6),
    Case("staged", _gemm(128, 128, 64), _gemm_oracle, (2, 2), (128,), 1e-6),
    Case("tensor", _scaled, _scaled_oracle, (2,), (128,), 1e-6),
    Case("memory", _memory, lambda b: {1: b[0][::-1].astype(np.float64) + 1}, (1,), (128,), 1e-6, {"threadgroup_memory": {0: 512}}),
    Case("matrix8", _gemm(64, 16, 16), _gemm_oracle, (2,), (128,), 1e-6),
    Case("fatal", lambda rng: [np.arange(64, dtype=np.int32)], lambda b: {0: b[0] + 1}, (2,), (32,), 0.0, {"timeout": 1.0}),
]
BY_NAME = {case.name: case for case in CASES}
