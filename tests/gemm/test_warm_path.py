"""What a warm call costs beside MLX's own graph build: interleaved, same process, best and median."""

import time

import mlx.core as mx

import mlx_tensorops as mt
from mlx_tensorops import hostmetal
from mlx_tensorops.primitives import matmul as module

CALLS = 10_000


def interleaved(arms: dict) -> dict:
    """(best, median) seconds per arm; garbage of one arm is paid before the next one starts."""
    times = {name: [] for name in arms}
    clock = time.perf_counter_ns
    for _ in range(CALLS):
        for name, call in arms.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: (min(t) * 1e-9, sorted(t)[CALLS // 2] * 1e-9) for name, t in times.items()}


def test_warm_call_and_guard():
    a, b = mx.zeros((64, 64), mx.float16), mx.zeros((64, 128), mx.float16)
    mx.eval(a, b)
    shapes = a.shape, b.shape
    mt.matmul(a, b)
    with hostmetal.active():
        mt.matmul(a, b, engine="mpp")
        plans = {key[6]: plan for key, plan in module._plans.items() if key[6] in ("auto", "mpp")}
        found = interleaved({
            "nothing": lambda: None,
            "mx.matmul": lambda: mx.matmul(a, b),
            "matmul": lambda: mt.matmul(a, b),
            "matmul mpp": lambda: mt.matmul(a, b, engine="mpp"),
            "guard": lambda: plans["auto"].guard(*shapes),
            "guard mpp": lambda: plans["mpp"].guard(*shapes),
        })
    best, median = ({name: times[i] for name, times in found.items()} for i in (0, 1))
    print(found)
    for name in ("guard", "guard mpp"):
        assert best[name] <= 1e-6, found
    for name in ("matmul", "matmul mpp"):
        assert best[name] <= best["mx.matmul"] + 5e-6, found
        assert median[name] <= median["mx.matmul"] + 8e-6, found
