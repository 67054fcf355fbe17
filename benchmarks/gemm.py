"""Dense GEMM on the CPU: against OpenBLAS, the memory's read rate, mx.matmul and float64.

python -m benchmarks.gemm           a table, losses included
python -m benchmarks.gemm --gate    the lines that must hold; exit status 1 when one does not
python -m benchmarks.gemm --policy  the evidence of mlx_tensorops/policies/cpu_gemm.py
        --json                      any of them as JSON
"""

from __future__ import annotations

import sys

from .harness import (Gate, Gates, OtherLoad, against, as_f64, command, configure, cpu_clock, interleave, relative_error, repeat, round_once, unjudged,
                      wall_clock)

import mlx.core as mx
import numpy as np
from threadpoolctl import threadpool_limits

from mlx_tensorops.primitives import _cpu, _native

from .soak import soak

HALVES = ("float16", "bfloat16")
DTYPES = ("float32", *HALVES)


def operands(m: int, n: int, k: int, dtype: str, layout: str = "nn", batch: tuple[int, ...] = ()):
    """a [m, k] and b [k, n], evaluated; layout "nt" stores b as [n, k]."""
    chance = np.random.default_rng(m * 7919 + n * 31 + k)
    a = mx.array(chance.standard_normal((*batch, m, k), np.float32)).astype(getattr(mx, dtype))
    b_shape = (*batch, n, k) if layout == "nt" else (*batch, k, n)
    b = mx.array(chance.standard_normal(b_shape, np.float32)).astype(getattr(mx, dtype))
    mx.eval(a, b)
    return a, b.swapaxes(-1, -2) if layout == "nt" else b


def ours(a, b, dtype: str):
    product = _cpu.matmul()
    return lambda: mx.eval(product(a, b, dtype, None, None, None, None))


def checked(arms: dict, a, b, dtype: str) -> dict:
    """The arms, after one product of ours has been compared with float64."""
    rows = as_f64(a[..., :64, :])
    got = as_f64(_cpu.matmul()(a, b, dtype, None, None, None, None))[..., :64, :]
    error = relative_error(got, rows @ as_f64(b))
    bound = {"float32": 1e-6, "float16": 6e-4, "bfloat16": 5e-3}[dtype]
    if not error < bound:
        raise AssertionError(f"{a.shape} @ {b.shape} {dtype}: relative error {error}")
    return arms


# ---- one thread against OpenBLAS -------------------------------------------------------------------


def against_blas(m: int, n: int, k: int, layout: str = "nn", rounds: int = 30, budget: float = 45.0) -> dict:
    """NumPy's sgemm and ours in each type, one thread, CPU time. Ratios above 1: ours is faster."""
    configure(1)
    arms = {}
    for dtype in DTYPES:
        a, b = operands(m, n, k, dtype, layout)
        arms |= checked({dtype: ours(a, b, dtype)}, a, b, dtype)
    a, b = operands(m, n, k, "float32", layout)
    na, nb = np.array(a), np.array(b)
    nb = np.ascontiguousarray(nb.T).T if layout == "nt" else nb
    arms["numpy"] = lambda: na @ nb
    with threadpool_limits(1, "blas"):
        # Small products are repeated, or the ticks of the clock and the graph would be what is measured.
        calls = max(1, round(2e7 / (m * n * k)))
        times = interleave({name: repeat(arm, calls) for name, arm in arms.items()}, rounds=rounds, calls=calls, clock=cpu_clock, budget=budget)
    configure()
    best = times["numpy"].best
    return {"shape": [m, n, k], "layout": layout, "gflops_numpy": 2e-9 * m * n * k / best,
            "ratio": {d: best / times[d].best for d in DTYPES}, "times": times}


# ---- threads ---------------------------------------------------------------------------------------


def scaling(size: int, dtype: str, rounds: int = 30) -> dict:
    """Two threads against one, wall clock."""
    a, b = operands(size, size, size, dtype)
    run = ours(a, b, dtype)
    checked({}, a, b, dtype)

    def with_threads(count: int):
        def arm():
            configure(count)
            run()

        return arm

    with OtherLoad() as load:
        times = interleave({"1": with_threads(1), "2": with_threads(2)}, rounds=rounds, clock=wall_clock, budget=20.0)
    configure()
    return {"size": size, "dtype": dtype, "speedup": times["1"].best / times["2"].best, "unjudged": unjudged(load), "times": times}


# ---- one row: the weights are read once -----------------------------------------------------------


def streaming(n: int, k: int, dtype: str, layout: str, rounds: int = 30) -> dict:
    """Bytes of weights a second, as a fraction of a plain read of the same array; one thread, CPU time."""
    configure(1)
    a, b = operands(1, n, k, dtype, layout)
    stored = b.swapaxes(-1, -2) if layout == "nt" else b
    checked({}, a, b, dtype)
    product, ext = _cpu.matmul(), _native.ext()
    calls = 8 if n * k < 2**25 else 2  # one eval for several calls, as in a model; the read pays no eval

    arms = {
        "ours": lambda: mx.eval([product(a, b, dtype, None, None, None, None) for _ in range(calls)]),
        "read": lambda: [ext.cpu_read(stored) for _ in range(calls)],
    }
    times = interleave(arms, rounds=rounds, calls=calls, clock=cpu_clock, budget=20.0)
    configure()
    rate = {name: n * k * 2e-9 / t.best for name, t in times.items()}
    return {"n": n, "k": k, "dtype": dtype, "layout": layout, "gb_s": rate, "fraction": rate["ours"] / rate["read"], "times": times}


# ---- against MLX -----------------------------------------------------------------------------------

# (batch, m, n, k)
MLX_SHAPES = (
    ((), 1, 1, 1), ((), 4, 4, 4), ((), 16, 16, 16), ((), 32, 32, 32), ((), 64, 64, 64), ((), 128, 128, 128), ((), 256, 256, 256),
    ((), 512, 512, 512), ((), 1, 64, 64), ((), 1, 512, 512), ((), 8, 512, 512), ((), 1, 2048, 2048), ((), 8, 2048, 2048),
    ((), 64, 2048, 512), ((), 2048, 1, 2048), ((), 1000, 3, 1000), ((), 3, 1000, 3), ((), 1000, 1000, 1), ((), 17, 33, 129),
    ((64,), 32, 32, 32), ((512,), 4, 4, 4), ((8,), 1, 128, 64), ((8,), 128, 128, 64),
)


def against_mlx(batch, m: int, n: int, k: int, dtype: str, layout: str = "nn", budget: float = 2.0) -> dict:
    """Ours and mx.matmul as an application calls them: graph and evaluation, default threads, wall clock."""
    a, b = operands(m, n, k, dtype, layout, batch)
    arms = checked({"ours": ours(a, b, dtype), "mlx": lambda: mx.eval(mx.matmul(a, b))}, a, b, dtype)
    rounds = 300 if m * n * k * (batch[0] if batch else 1) < 2e6 else 30
    result = against(arms["ours"], arms["mlx"], rounds=rounds, budget=budget)
    return {"batch": list(batch), "shape": [m, n, k], "dtype": dtype, "layout": layout, "mlx_us": result.pop("theirs_us"), **result}


# ---- accuracy --------------------------------------------------------------------------------------


def accuracy(m: int, n: int, k: int, dtype: str, layout: str) -> dict:
    """Error against float64 over that of rounding the float64 result once; for f32, over NumPy's sgemm."""
    a, b = operands(m, n, k, dtype, layout)
    want = as_f64(a) @ as_f64(b)
    got = relative_error(as_f64(_cpu.matmul()(a, b, dtype, None, None, None, None)), want)
    if dtype == "float32":
        reference = relative_error(np.array(a) @ np.array(b), want)
    else:
        reference = relative_error(round_once(want, dtype), want)
    return {"shape": [m, n, k], "dtype": dtype, "layout": layout, "error": got, "reference": reference, "ratio": got / reference}


ACCURACY = [(*shape, dtype, layout) for shape in ((64, 64, 4096), (64, 64, 1000), (8, 512, 4096), (1, 4096, 4096), (160, 128, 2048))
            for dtype in DTYPES for layout in ("nn", "nt")]


# ---- gates -----------------------------------------------------------------------------------------


def gates(show) -> list[Gate]:
    """Every line that must hold, printed as it is measured."""
    gate = Gates(show)

    for size, layout in ((512, "nn"), (512, "nt"), (1024, "nn"), (1024, "nt"), (2048, "nn")):
        result = against_blas(size, size, size, layout)
        for dtype, ratio in result["ratio"].items():
            bound = 0.75 if size < 1024 else 0.85 if dtype == "float32" else 0.80
            gate(f"1 thread, {size}^3 {layout} {dtype}: speed over NumPy's sgemm ({result['gflops_numpy']:.0f} GFLOP/s)", ratio, bound, aim=0.95)
    for dtype in ("float32", "bfloat16"):
        result = scaling(2048, dtype)
        gate(f"2 threads over 1, 2048^3 {dtype}", result["speedup"], 1.6, unjudged=result["unjudged"])
    for size in (2048, 4096, 8192):
        for dtype in HALVES:
            for layout in ("nt", "nn"):
                result = streaming(size, size, dtype, layout)
                gate(f"M = 1, {size}x{size} {dtype} {layout} ({size * size * 2 >> 20} MiB): read rate over a plain read ({result['gb_s']['read']:.0f} GB/s)",
                     result["fraction"], 0.6, aim=0.85)
    for batch, m, n, k in MLX_SHAPES:
        for dtype in DTYPES:
            result = against_mlx(batch, m, n, k, dtype)
            name = f"{'x'.join(map(str, (*batch, m, n, k)))} {dtype}: mx.matmul {result['mlx_us']:.0f} us, ours {result['ours_us']:.0f} us"
            if result["mlx_us"] >= 200:
                gate(f"{name}, ratio", result["ratio"], 12.0 if min(m, n, k) >= 256 else 1.0)
            else:
                gate(f"{name}, extra us", result["extra_us"], 10.0, at_least=False)
    for case in ACCURACY:
        result = accuracy(*case)
        over = "NumPy's sgemm" if case[3] == "float32" else "rounding once"
        gate(f"error {'x'.join(map(str, case[:3]))} {case[3]} {case[4]} ({result['error']:.2e}) over {over}", result["ratio"],
             2.0 if case[3] == "float32" else 1.1, at_least=False)
    seen = soak()
    gate(f"8 threads x 2000 calls, 3 streams each, a fork ({seen['seconds']:.0f} s): MB of live memory gained after the first quarter", seen["growth_mb"], 4.0, at_least=False)
    return gate.found


def table(show) -> dict:
    """The default report: what a reader wants to know first, losses kept."""
    show("One thread, CPU time: speed over NumPy's sgemm of the same shape (above 1: ours is faster)")
    blas = []
    for m, n, k, layout in ((64, 64, 64, "nn"), (256, 256, 256, "nn"), (512, 512, 512, "nn"), (1024, 1024, 1024, "nn"), (1024, 1024, 1024, "nt"),
                            (2048, 2048, 2048, "nn"), (8, 2048, 2048, "nt"), (64, 2048, 2048, "nt"), (512, 768, 2048, "nt")):
        result = against_blas(m, n, k, layout, rounds=10, budget=15.0)
        blas.append(result)
        show(f"  {m:5d} x {n:5d} x {k:5d} {layout}  numpy {result['gflops_numpy']:5.1f} GFLOP/s  " + "  ".join(f"{d} {r:.2f}" for d, r in result["ratio"].items()))
    show("One row, one thread: share of the rate of a plain read of the same weights")
    rows = []
    for n, dtype, layout in ((2048, "float16", "nt"), (2048, "bfloat16", "nt"), (4096, "float16", "nt"), (4096, "bfloat16", "nn")):
        rows.append(streaming(n, n, dtype, layout, rounds=10))
        show(f"  {n} x {n} {dtype} {layout}  {rows[-1]['gb_s']['ours']:.1f} of {rows[-1]['gb_s']['read']:.1f} GB/s = {rows[-1]['fraction']:.2f}")
    show("Against mx.matmul on the CPU, default threads, graph and evaluation (a ratio below 1 is a loss)")
    mlx = []
    for batch, m, n, k in MLX_SHAPES:
        line = [against_mlx(batch, m, n, k, dtype, budget=1.0) for dtype in DTYPES]
        mlx += line
        show(f"  {'x'.join(map(str, (*batch, m, n, k))):18s} " + "  ".join(f"{r['dtype']} {r['mlx_us']:8.0f} / {r['ours_us']:6.0f} us = {r['ratio']:6.1f}" for r in line))
    return {"blas": blas, "rows": rows, "mlx": mlx}


def policy(show) -> list[dict]:
    """Ours against mx.matmul over small and lopsided products, grouped by work: where is the engine not slower?"""
    sides = (1, 2, 4, 8, 16, 32, 64, 256)
    groups: dict[tuple[str, int], list[dict]] = {}
    for m in sides:
        for n in sides:
            for k in sides:
                if m * n * k > 2**18:
                    continue
                for dtype in DTYPES:
                    result = against_mlx((), m, n, k, dtype, budget=0.05)
                    groups.setdefault((dtype, (m * n * k).bit_length() // 3), []).append(result)
    rows = []
    for (dtype, octave), results in sorted(groups.items()):
        extra = sorted(r["extra_us"] for r in results)
        row = {"dtype": dtype, "mnk_from": 8**octave // 2, "mnk_below": 8**octave * 4, "products": len(results),
               "median_extra_us": extra[len(extra) // 2], "worst_extra_us": extra[-1], "median_ratio": sorted(r["ratio"] for r in results)[len(results) // 2]}
        rows.append(row)
        show(f"  {dtype:8s} {row['mnk_from']:7d} <= m n k < {row['mnk_below']:7d}  {row['products']:3d} products: ours - mlx median {row['median_extra_us']:8.1f} us, "
             f"worst {row['worst_extra_us']:6.1f} us; median ratio {row['median_ratio']:.2f}")
    return rows


if __name__ == "__main__":
    sys.exit(command(__doc__, gates, table, policy=(policy, "measure where the engine is not slower than mx.matmul")))
