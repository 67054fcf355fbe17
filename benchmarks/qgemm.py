"""Products with block-quantised weights on the CPU: against OpenBLAS, the memory's read rate, mx.quantized_matmul and float64.

python -m benchmarks.qgemm           a table, losses included
python -m benchmarks.qgemm --gate    the lines that must hold; exit status 1 when one does not
        --json                       either of them as JSON
"""

from __future__ import annotations

import sys

from .harness import Gate, Gates, Show, against, as_f64, command, configure, cpu_clock, interleave, relative_error, repeat, round_once, unjudged, wall_clock, OtherLoad

import mlx.core as mx
import numpy as np
from threadpoolctl import threadpool_limits

import mlx_tensorops as mt
from mlx_tensorops import formats
from mlx_tensorops.primitives import _native

from .operands import dense, normal, weights, words

FORMATS = tuple(f.name for f in formats.BUILT_IN)
COMMON = ("affine4_g64", "affine8_g64", "mxfp4", "mxfp8", "nvfp4")
HALVES = ("float16", "bfloat16")
GATE_UP, SQUARE = (768, 2048), (4096, 4096)  # N, K

# Rows of x: bound and aim of the speed over NumPy's sgemm.
ROWS = {4: (0.50, 0.70), 8: (0.50, 0.70), 16: (0.55, 0.75), 64: (0.75, 0.90), 512: (0.75, 0.90)}

STREAM = 96 << 20  # bytes of codes, three times a large L3: what one row of x reads comes from memory, as in a model


def ours(x, stored, name: str, transpose: bool = True, dtype: str | None = None):
    of_type = getattr(mx, dtype) if dtype else x.dtype
    return lambda: mt.quantized_matmul(x, *stored, transpose, **words(name), out_dtype=of_type, engine="cpu")


def over_rounding(got: mx.array, want: np.ndarray) -> float:
    """The error over that of rounding the float64 result once."""
    return relative_error(as_f64(got), want) / relative_error(round_once(want, str(got.dtype).split(".")[-1]), want)


# ---- one thread against OpenBLAS --------------------------------------------------------------------


def against_blas(m: int, shape: tuple[int, int], names=FORMATS, dtype: str = "bfloat16", transpose: bool = True, rounds: int = 12, budget: float = 20.0) -> dict:
    """NumPy's sgemm of the same shape and ours in each format, one thread, CPU time. Ratios above 1: ours is faster."""
    configure(1)
    n, k = shape
    x = normal((m, k), getattr(mx, dtype))
    na, nb = as_f64(x).astype(np.float32), np.random.default_rng(2).standard_normal((n, k), np.float32).T
    calls = max(1, round(2e7 / (m * n * k)))
    arms = {"numpy": repeat(lambda: na @ nb, calls)}
    for name in names:
        product = ours(x, weights(name, n, k, transpose), name, transpose)
        arms[name] = lambda product=product: mx.eval([product() for _ in range(calls)])
    with threadpool_limits(1, "blas"):
        times = interleave(arms, rounds=rounds, calls=calls, clock=cpu_clock, budget=budget)
    configure()
    best = times["numpy"].best
    return {"shape": [m, n, k], "dtype": dtype, "transpose": transpose, "gflops_numpy": 2e-9 * m * n * k / best,
            "ratio": {name: best / times[name].best for name in names}, "times": times}


# ---- one row: the weights are read once --------------------------------------------------------------


def streaming(name: str, shape: tuple[int, int], transpose: bool = True, rounds: int = 10) -> dict:
    """One row of x against a stack of weights that no cache holds: bytes a second of codes, scales and biases, as a fraction of a plain
    read of the same arrays. One thread, CPU time."""
    configure(1)
    n, k = shape
    stack = max(1, STREAM // (n * k * formats.by_name(name).bits // 8))
    # Random numbers for one of them are enough: how fast codes are read does not depend on them.
    one = weights(name, n, k, transpose)
    stored = tuple(None if a is None else mx.contiguous(mx.broadcast_to(a[None], (stack, *a.shape))) for a in one)
    given = [a for a in stored if a is not None]
    x = mx.broadcast_to(normal((1, k), mx.bfloat16), (stack, 1, k))
    mx.eval(x, *given)
    product, read = ours(x, stored, name, transpose), _native.ext().cpu_read
    times = interleave({"ours": lambda: mx.eval(product()), "read": lambda: [read(a) for a in given]}, rounds=rounds, clock=cpu_clock, budget=4.0)
    configure()
    size = sum(a.nbytes for a in given)
    rate = {arm: 1e-9 * size / t.best for arm, t in times.items()}
    return {"format": name, "shape": [n, k], "transpose": transpose, "stack": stack, "gb_s": rate, "fraction": rate["ours"] / rate["read"], "times": times}


# ---- threads -----------------------------------------------------------------------------------------


def scaling(name: str, m: int, shape: tuple[int, int], rounds: int = 20) -> dict:
    """Two threads against one, wall clock."""
    n, k = shape
    product = ours(normal((m, k), mx.bfloat16), weights(name, n, k), name)

    def with_threads(count: int):
        def arm():
            configure(count)
            mx.eval(product())

        return arm

    with OtherLoad() as load:
        times = interleave({"1": with_threads(1), "2": with_threads(2)}, rounds=rounds, clock=wall_clock, budget=6.0)
    configure()
    return {"format": name, "shape": [m, n, k], "speedup": times["1"].best / times["2"].best, "unjudged": unjudged(load), "times": times}


# ---- against MLX -------------------------------------------------------------------------------------

# m, n, k
MLX_SHAPES = ((1, 32, 32), (4, 64, 64), (1, 256, 256), (8, 256, 256), (1, 768, 2048), (16, 768, 2048))


def against_mlx(name: str, m: int, n: int, k: int, dtype: str, budget: float = 0.4) -> dict:
    """Ours and mx.quantized_matmul as an application calls them: graph and evaluation, default threads, wall clock. MLX sums in the type of
    x, so that the two results are not compared with each other."""
    k = max(k, formats.by_name(name).group)
    stored, x = weights(name, n, k, dtype=dtype), normal((m, k), getattr(mx, dtype))
    product = ours(x, stored, name)
    result = against(lambda: mx.eval(product()), lambda: mx.eval(mx.quantized_matmul(x, *stored, **words(name))), rounds=200 if m * n * k < 1e6 else 10, budget=budget)
    return {"format": name, "shape": [m, n, k], "dtype": dtype, "mlx_us": result.pop("theirs_us"), **result}


# ---- accuracy ----------------------------------------------------------------------------------------


def accuracy(name: str, m: int, n: int, k: int, dtype: str, transpose: bool, sigma: float = 1.0) -> dict:
    stored, x = weights(name, n, k, transpose, dtype), normal((m, k), mx.float32)
    x = (x * sigma).astype(getattr(mx, dtype))
    want = as_f64(x) @ dense(name, stored, transpose)
    got = ours(x, stored, name, transpose)()
    return {"format": name, "shape": [m, n, k], "dtype": dtype, "transpose": transpose, "sigma": sigma, "ratio": over_rounding(got, want)}


# ---- gates -------------------------------------------------------------------------------------------


def gates(show: Show) -> list[Gate]:
    """Every line that must hold; the ratios to MLX, whose CPU path may get better, are shown beside them."""
    gate = Gates(show)
    for shape, names, rows in ((GATE_UP, FORMATS, ROWS), (SQUARE, COMMON, (8, 64))):
        for m in rows:
            bound, aim = ROWS[m]
            result = against_blas(m, shape, names)
            for name, ratio in result["ratio"].items():
                gate(f"1 thread, {m}x{shape[0]}x{shape[1]} {name}: speed over NumPy's sgemm ({result['gflops_numpy']:.0f} GFLOP/s)", ratio, bound, aim=aim)
    for m in (4, 16, 64):
        result = against_blas(m, GATE_UP, COMMON, transpose=False)
        for name, ratio in result["ratio"].items():
            gate(f"1 thread, {m}x{GATE_UP[0]}x{GATE_UP[1]} {name}, stored along N: speed over NumPy's sgemm", ratio, ROWS[m][0], aim=ROWS[m][1])
    for shape, names in ((GATE_UP, FORMATS), (SQUARE, COMMON)):
        for name in names:
            result = streaming(name, shape)
            told = f"M = 1, {shape[0]}x{shape[1]} {name} from memory: {result['gb_s']['ours']:.1f} GB/s, over a plain read ({result['gb_s']['read']:.0f} GB/s)"
            if formats.by_name(name).bits >= 4:
                gate(told, result["fraction"], 0.22, aim=0.45)
            else:  # fewer bytes for the same number of codes: the decoder is what limits these
                show(f"{'reported':10s} {told}: {result['fraction']:.2f}")
    for name, m in (("nvfp4", 64), ("affine4_g64", 64), ("mxfp4", 1)):
        result = scaling(name, m, SQUARE)
        gate(f"2 threads over 1, {m}x{SQUARE[0]}x{SQUARE[1]} {name}", result["speedup"], 1.6, aim=1.9, unjudged=result["unjudged"])
    for m, n, k in MLX_SHAPES:
        for name in COMMON if m * n * k < 1e6 else ("affine4_g64", "nvfp4"):
            for dtype in ("float32", "bfloat16"):
                result = against_mlx(name, m, n, k, dtype)
                told = f"{m}x{n}x{k} {name} {dtype}: mx.quantized_matmul {result['mlx_us']:.0f} us, ours {result['ours_us']:.0f} us"
                if result["mlx_us"] >= 200:
                    gate(f"{told}, ratio", result["ratio"], 1.0)
                else:
                    gate(f"{told}, extra us", result["extra_us"], 10.0, at_least=False)
    for name in FORMATS:
        worst = max((accuracy(name, m, n, 1024, dtype, transpose, sigma) for m, n in ((1, 1024), (6, 256), (64, 128)) for dtype in HALVES
                     for transpose, sigma in ((True, 1.0), (False, 1.0), (True, 0.003))), key=lambda r: r["ratio"])
        gate(f"error of halves over rounding once, {name}, worst of 18", worst["ratio"], 1.1, aim=1.02, at_least=False)
    return gate.found


def table(show: Show) -> dict:
    """The default report: what a reader wants to know first, losses kept."""
    show("One thread, CPU time, bfloat16 x, N 768, K 2048: speed over NumPy's sgemm of the same shape (above 1: ours is faster)")
    blas = [against_blas(m, GATE_UP, rounds=6, budget=8.0) for m in ROWS]
    show(f"  {'rows of x':14s}" + "".join(f"{m:7d}" for m in ROWS))
    show(f"  {'NumPy GFLOP/s':14s}" + "".join(f"{r['gflops_numpy']:7.0f}" for r in blas))
    for name in FORMATS:
        show(f"  {name:14s}" + "".join(f"{r['ratio'][name]:7.2f}" for r in blas))
    show("One row, one thread, weights from memory: GB/s of codes, scales and biases, and the share of a plain read of them")
    rows = []
    for name in FORMATS:
        rows.append(streaming(name, GATE_UP, rounds=5))
        show(f"  {name:14s} {rows[-1]['gb_s']['ours']:5.1f} of {rows[-1]['gb_s']['read']:5.1f} GB/s = {rows[-1]['fraction']:.2f}")
    show("Against mx.quantized_matmul on the CPU, default threads, graph and evaluation (a ratio below 1 is a loss)")
    mlx = []
    for m, n, k in MLX_SHAPES:
        for name in ("affine4_g64", "nvfp4"):
            line = [against_mlx(name, m, n, k, dtype) for dtype in ("float32", "bfloat16")]
            mlx += line
            show(f"  {m:3d}x{n}x{k} {name:12s} " + "  ".join(f"{r['dtype']} {r['mlx_us']:8.0f} / {r['ours_us']:6.0f} us = {r['ratio']:6.1f}" for r in line))
    return {"blas": blas, "rows": rows, "mlx": mlx}


if __name__ == "__main__":
    sys.exit(command(__doc__, gates, table))
