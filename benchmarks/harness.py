"""Interleaved measurements.

Every benchmark compares arms: callables that do the same work and end with the same synchronisation. Arms
take turns, in an order that rotates each round, so that a slow minute of the machine hits all of them. What is
reported and gated is their ratio, never a time of another run.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

Arm = Callable[[], object]

# CPU time of the whole process: blind to preemption, so it serves one-thread arms on a shared machine.
cpu_clock = time.process_time
wall_clock = time.perf_counter


@dataclass(frozen=True)
class Timing:
    """Seconds of one call."""

    best: float
    median: float
    spread: float  # interquartile range over the median
    samples: int


def interleave(
    arms: Mapping[str, Arm],
    *,
    rounds: int = 30,
    calls: int = 1,
    clock: Callable[[], float] = wall_clock,
    budget: float = 60.0,
) -> dict[str, Timing]:
    """Time each arm once a round. ``calls`` is how many operations one call of an arm does.

    An arm that has used its share of ``budget`` seconds (wall clock) rests, but has at least three samples.
    """
    names = list(arms)
    samples: dict[str, list[float]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    for name in names:
        arms[name]()
    for turn in range(rounds):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            if spent[name] > budget / len(names) and len(samples[name]) >= 3:
                continue
            began, start = wall_clock(), clock()
            arms[name]()
            samples[name].append((clock() - start) / calls)
            spent[name] += wall_clock() - began
    return {name: _timing(values) for name, values in samples.items()}


def _timing(values: list[float]) -> Timing:
    middle = statistics.median(values)
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [middle] * 3
    return Timing(min(values), middle, (quarters[2] - quarters[0]) / middle if middle else 0.0, len(values))


class OtherLoad:
    """Cores kept busy by other processes while the block runs; None where the system does not tell."""

    cores: float | None = None

    def __enter__(self) -> OtherLoad:
        self._start = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        end = self._now()
        if self._start and end:
            busy, own, wall = (b - a for a, b in zip(self._start, end))
            self.cores = max(0.0, (busy - own) / wall) if wall > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        try:
            with open("/proc/stat") as file:
                ticks = [int(x) for x in file.readline().split()[1:]]
        except OSError:
            return None
        # user nice system idle iowait irq softirq steal
        busy = (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")
        return busy, time.process_time(), wall_clock()


def relative_error(got, want) -> float:
    """Frobenius norm of the difference over that of ``want`` (NumPy arrays)."""
    import numpy as np

    return float(np.linalg.norm(np.asarray(got, np.float64) - want) / max(np.linalg.norm(want), 1e-300))


@dataclass(frozen=True)
class Gate:
    """One line that must hold: a value, its bound, and whether the run could judge it."""

    name: str
    value: float
    bound: float
    at_least: bool = True
    aim: float | None = None
    unjudged: str = ""  # why the value does not count

    @property
    def ok(self) -> bool:
        return bool(self.unjudged) or (self.value >= self.bound if self.at_least else self.value <= self.bound)

    def __str__(self) -> str:
        mark = "not judged" if self.unjudged else "ok" if self.ok else "FAIL"
        sign = ">=" if self.at_least else "<="
        aim = f", aim {self.aim:g}" if self.aim is not None else ""
        why = f" ({self.unjudged})" if self.unjudged else ""
        return f"{mark:10s} {self.name}: {self.value:.3g} ({sign} {self.bound:g}{aim}){why}"


def environment() -> dict[str, object]:
    """What a reader needs to place the figures."""
    import mlx.core as mx

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "mlx": mx.__version__,
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def to_json(**sections: object) -> str:
    return json.dumps(sections, default=lambda x: asdict(x) | {"ok": x.ok} if isinstance(x, Gate) else asdict(x), indent=1)
