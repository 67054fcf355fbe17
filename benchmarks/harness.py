"""Interleaved measurements.

Every benchmark compares arms: callables that do the same work and end with the same synchronisation. Arms
take turns, in an order that rotates each round, so that a slow minute of the machine hits all of them. What is
reported and gated is their ratio, never a time of another run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

Arm = Callable[[], object]

# Both change which kernels an OpenBLAS picks; the arms must not differ by them, so none has them. Before NumPy loads its own.
for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)

QUIET = 0.3  # cores of other load above which two threads cannot be judged on two cores

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


def unjudged(load: OtherLoad) -> str:
    """Why a figure of all cores does not count, or nothing."""
    if load.cores is None:
        return "other load unknown"
    if load.cores >= QUIET:
        return f"other processes kept {load.cores:.2f} cores busy"
    return "only one core" if (os.cpu_count() or 1) < 2 else ""


def repeat(arm: Arm, calls: int) -> Arm:
    def run():
        for _ in range(calls):
            arm()

    return run


def configure(threads: int = 0) -> None:
    from mlx_tensorops.primitives import _cpu, _native

    _cpu.matmul()  # configures the engine at its first use, which must not come later
    _native.ext().cpu_configure(threads=threads)


def as_f64(x):
    """An MLX array as a NumPy one."""
    import mlx.core as mx
    import numpy as np

    return np.array(x.astype(mx.float32)).astype(np.float64)


SERIES = 5  # of interleaved calls, at most
NOISE = 2e-6


def against(ours: Arm, theirs: Arm, *, rounds: int, budget: float) -> dict:
    """Two arms as an application calls them, wall clock: ratio of best times (above 1: ours is faster), and seconds that ours takes more.

    A virtual core that was idle wakes in tens of microseconds and then runs slowly for a while: best times of two arms may come from
    different phases, medians of one interleaved series do not. So both are asked, and a few series.
    """
    arms = {"ours": ours, "theirs": theirs}
    best, extra = dict.fromkeys(arms, float("inf")), float("inf")
    with OtherLoad() as load:
        for _ in range(SERIES):
            times = interleave(arms, rounds=rounds, clock=wall_clock, budget=budget)
            best = {name: min(best[name], times[name].best) for name in arms}
            extra = min(extra, best["ours"] - best["theirs"], times["ours"].median - times["theirs"].median)
            if extra <= NOISE:
                break
    return {"ratio": best["theirs"] / best["ours"], "ours_us": best["ours"] * 1e6, "theirs_us": best["theirs"] * 1e6, "extra_us": extra * 1e6,
            "other_load": load.cores, "times": times}


def round_once(values, dtype: str):
    """float64 values rounded to a type once, in float64: the error that no half result can avoid."""
    import mlx.core as mx
    import numpy as np

    rounded = mx.array(np.asarray(values).astype(np.float32)).astype(getattr(mx, dtype))
    return np.array(rounded.astype(mx.float32)).astype(np.float64)


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


Show = Callable[[object], None]


class Gates:
    """Gates, shown as they are measured."""

    def __init__(self, show: Show) -> None:
        self.found: list[Gate] = []
        self._show = show

    def __call__(self, *args, **kwargs) -> None:
        self.found.append(Gate(*args, **kwargs))
        self._show(self.found[-1])


def command(description: str | None, gates: Callable[[Show], list[Gate]], table: Callable[[Show], object], **modes: tuple[Callable[[Show], object], str]) -> int:
    """The command line of a benchmark: a table, ``--gate``, further modes with their help, ``--json``. Returns the exit status."""
    import mlx.core as mx
    import numpy as np
    from threadpoolctl import threadpool_info

    from mlx_tensorops.primitives import _cpu

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gate", action="store_true", help="judge the lines that must hold")
    for name, (_, told) in modes.items():
        parser.add_argument(f"--{name}", action="store_true", help=told)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    show: Show = (lambda _: None) if args.json else lambda line: print(line, flush=True)
    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    blas = [f"{x['internal_api']} {x['version']} {x['architecture']}" for x in threadpool_info() if x["user_api"] == "blas"]
    where = environment() | {"engine": _cpu.info(), "numpy_blas": blas}
    for name, value in where.items():
        show(f"{name}: {value}")
    if not args.gate:
        mode = next((run for name, (run, _) in modes.items() if getattr(args, name)), table)
        result = mode(show)
        if args.json:
            print(to_json(environment=where, result=result))
        return 0
    found = gates(show)
    failed = [g for g in found if not g.ok]
    if args.json:
        print(to_json(environment=where, gates=found))
    show(f"{len(found)} gates, {len(failed)} failed, {sum(bool(g.unjudged) for g in found)} not judged")
    for g in failed:
        show(g)
    return 1 if failed else 0
