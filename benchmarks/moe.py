"""Products over experts on the CPU: against OpenBLAS, the memory's read rate, MLX's operations, the layer as mlx-lm writes it, and float64.

python -m benchmarks.moe           a table, losses included
python -m benchmarks.moe --gate    the lines that must hold, then what is only reported; exit status 1 when a line does not hold
        --json                     either of them as JSON
"""

from __future__ import annotations

import math
import sys

from .harness import Gate, Gates, OtherLoad, Show, as_f64, command, configure, cpu_clock, interleave, relative_error, repeat, unjudged, wall_clock

import mlx.core as mx
import numpy as np
from threadpoolctl import threadpool_limits

import mlx_tensorops as mt
from mlx_tensorops.primitives import _cpu, _native

from .operands import dense, expert, normal, weights, words

K, N = 2048, 768  # of a gate or up projection of Qwen3-30B-A3B
FORMATS = ("affine4_g64", "nvfp4", "mxfp4", "mxfp8")
ROUNDING = {mx.float32: 1e-6, mx.float16: 6e-4, mx.bfloat16: 5e-3}  # allowed relative error: f32 sums, one rounding


# ---- operands ----------------------------------------------------------------------------------------


def routed(tokens: int, e: int, k: int, seed: int) -> mx.array:
    """k different experts for each token."""
    chance = np.random.default_rng(seed)
    ids = mx.array(np.stack([chance.permutation(e)[:k] for _ in range(tokens)]).astype(np.int32))
    mx.eval(ids)
    return ids


def check(got: mx.array, want: np.ndarray, what: str, slack: float = 1.0) -> None:
    error = relative_error(as_f64(got), want)
    if not error < ROUNDING[got.dtype] * slack:
        raise AssertionError(f"{what}: relative error {error}")


# ---- one projection, one thread ---------------------------------------------------------------------


def grouped(name: str, rows: int, dtype=mx.bfloat16, rounds: int = 15) -> dict:
    """gather_qmm with `rows` rows for each expert, in random order. Yardsticks: NumPy's sgemm of one expert's shape, as often as there are
    experts on the same operands (so from the cache), and a plain read of the packed weights (with one row from memory: 100 MB and more)."""
    configure(1)
    e = 128 if rows == 1 else 16
    stored = weights(name, N, K, batch=(e,), seed=rows)
    x = normal((rows * e, 1, K), dtype, rows + 1)
    ids = mx.array(np.random.default_rng(rows).permutation(np.repeat(np.arange(e), rows)).astype(np.int32))
    mx.eval(ids)

    def ours():
        return mt.gather_qmm(x, *stored, rhs_indices=ids, **words(name), engine="cpu")

    some = np.arange(min(len(x), 24))
    want = np.concatenate([as_f64(x[i]) @ dense(name, expert(stored, ids[i].item())) for i in some.tolist()])
    check(ours()[: len(some), 0], want, f"{name}, {rows} rows an expert")
    na, nb = np.array(x[:rows, 0].astype(mx.float32)), dense(name, expert(stored, 0)).astype(np.float32)
    ext, packed = _native.ext(), stored[0]
    arms = {"ours": lambda: mx.eval(ours()), "sgemm": repeat(lambda: na @ nb, e), "read": lambda: ext.cpu_read(packed)}
    with threadpool_limits(1, "blas"):
        times = interleave(arms, rounds=rounds, clock=cpu_clock, budget=3.0)
    configure()
    best = {arm: t.best for arm, t in times.items()}
    return {"format": name, "rows": rows, "dtype": str(dtype), "gflops": 2e-9 * rows * e * K * N / best["ours"], "sgemm_fraction": best["sgemm"] / best["ours"],
            "stream_fraction": best["read"] / best["ours"], "gb_s": packed.nbytes * 1e-9 / best["ours"], "times": times}


def against_gather_qmm(name: str, e: int, k: int, tokens: int, dtype=mx.bfloat16) -> dict:
    """mx.gather_qmm and ours, one thread, CPU time. MLX sums in the type of x: the two are not compared with each other."""
    configure(1)
    stored, x, ids = weights(name, N, K, batch=(e,), seed=1), normal((tokens, 1, 1, K), dtype, 2), routed(tokens, e, k, 3)
    ours = lambda: mt.gather_qmm(x, *stored, rhs_indices=ids, **words(name), engine="cpu")  # noqa: E731
    check(ours()[0, 0, 0], as_f64(x[0, 0, 0]) @ dense(name, expert(stored, ids[0, 0].item())), f"{name} {e} {k} {tokens}")
    arms = {"ours": lambda: mx.eval(ours()), "mlx": lambda: mx.eval(mx.gather_qmm(x, *stored, rhs_indices=ids, **words(name)))}
    times = interleave(arms, rounds=5, clock=cpu_clock, budget=4.0)
    configure()
    return {"format": name, "experts": e, "k": k, "tokens": tokens, "dtype": str(dtype), "ratio": times["mlx"].best / times["ours"].best, "times": times}


# ---- a layer -----------------------------------------------------------------------------------------


def layer(name: str, e: int, i: int = N, h: int = K):
    """gate, up and down."""
    return tuple(weights(name, *shape, batch=(e,), seed=seed) for shape, seed in (((i, h), 11), ((i, h), 12), ((h, i), 13)))


def as_mlx_lm(x, gate, up, down, ids, scores, form: dict):
    """The steps of mlx-lm's SwitchGLU and of the models that call it: rows sorted by expert from 64 pairs on, three products, the
    activation, the way back, and the weighted sum."""
    inverse, pairs = None, ids
    rows = mx.expand_dims(x, (-2, -3))
    ordered = ids.size >= 64
    if ordered:
        order = mx.argsort(ids.flatten())
        inverse = mx.argsort(order)
        rows, pairs = rows.flatten(0, -3)[order // ids.shape[-1]], ids.flatten()[order]
    product = lambda a, w: mx.gather_qmm(a, *w, rhs_indices=pairs, sorted_indices=ordered, **form)  # noqa: E731
    g, u = product(rows, gate), product(rows, up)
    y = product(g * mx.sigmoid(g) * u, down)
    if ordered:
        y = mx.unflatten(y[inverse], 0, ids.shape)
    return (y.squeeze(-2) * scores[..., None]).sum(-2)


def layer_in_f64(x, gate, up, down, ids, scores, name: str, dtype) -> np.ndarray:
    """Of the first token; the activations are rounded to the type of x, as they are stored."""
    total = 0.0
    for number, score in zip(np.array(ids)[0].tolist(), as_f64(scores)[0]):
        g, u = (as_f64(x[0]) @ dense(name, expert(w, number)) for w in (gate, up))
        h = as_f64(mx.array((g / (1 + np.exp(-g)) * u).astype(np.float32)).astype(dtype))
        total = total + score * (h @ dense(name, expert(down, number)))
    return total


def against_mlx_lm(name: str, e: int, k: int, tokens: int, dtype=mx.bfloat16, threads: int = 2, budget: float = 6.0) -> dict:
    """switch_glu against the layer as mlx-lm writes it, wall clock; ours with `threads` threads (MLX has one)."""
    configure(threads)
    stored, x, ids = layer(name, e), normal((tokens, K), dtype, 4) * 0.05, routed(tokens, e, k, 5)
    scores = mx.softmax(normal((tokens, k), mx.float32, 6), axis=-1)
    mx.eval(x, scores)
    ours = lambda: mt.switch_glu(x, *stored, ids, scores, **words(name), engine="cpu", out_dtype=dtype)  # noqa: E731
    check(ours()[0], layer_in_f64(x, *stored, ids, scores, name, dtype), f"switch_glu {name} {e} {k} {tokens}", slack=4.0)
    arms = {"ours": lambda: mx.eval(ours()), "mlx-lm": lambda: mx.eval(as_mlx_lm(x, *stored, ids, scores, words(name)))}
    with OtherLoad() as load:
        times = interleave(arms, rounds=20, clock=wall_clock, budget=budget)
    configure()
    return {"format": name, "experts": e, "k": k, "tokens": tokens, "dtype": str(dtype), "threads": threads, "ms": {arm: t.best * 1e3 for arm, t in times.items()},
            "ratio": times["mlx-lm"].best / times["ours"].best, "unjudged": unjudged(load), "times": times}


def memory(tokens: int = 2048, e: int = 128, k: int = 8, name: str = "affine4_g64") -> dict:
    """Bytes that switch_glu takes beyond its inputs, its result and the activations between gate/up and down: MLX's buffers by MLX's own
    count, and the engine's scratch by its counter."""
    configure(2)
    stored, x, ids = layer(name, e), normal((tokens, K), mx.bfloat16, 7), routed(tokens, e, k, 8)
    scores = normal((tokens, k), mx.bfloat16, 9)
    ext = _native.ext()
    ext.cpu_counters_reset()
    mx.clear_cache()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with OtherLoad() as load:
        start = wall_clock()
        out = mt.switch_glu(x, *stored, ids, scores, **words(name), engine="cpu")
        mx.eval(out)
        seconds = wall_clock() - start
    peak, counted = mx.get_peak_memory() - before, ext.cpu_counters()
    threads, activations = _cpu.info()["threads"], tokens * k * N * 2
    configure()
    scratch = threads * counted["scratch_bytes_per_thread"]
    return {"tokens": tokens, "seconds": seconds, "gflops": 6e-9 * tokens * k * K * N / seconds, "other_load": load.cores, "threads": threads,
            "result": out.nbytes, "activations": activations, "peak": peak, "scratch": scratch,
            "beyond_per_thread": (peak + scratch - out.nbytes - activations) / threads,
            "decoded": counted["weights_decoded"] / (3 * e * K * N)}


# ---- gates ---------------------------------------------------------------------------------------------

BOUNDS = {1: None, 4: 0.50, 8: 0.50, 16: 0.55, 64: 0.75, 128: 0.75}
AIMS = {4: 0.70, 8: 0.70, 16: 0.75, 64: 0.90, 128: 0.90}
TYPES = ((mx.bfloat16, FORMATS), (mx.float32, ("affine4_g64",)), (mx.float16, ("affine4_g64",)))

# (format, experts, k, tokens, type of x, goal, aim); few tokens, because MLX's form takes seconds
LAYERS = (("affine4_g64", 128, 8, 1, mx.bfloat16, 90, 200), ("nvfp4", 128, 8, 1, mx.bfloat16, 90, 200), ("affine4_g64", 8, 2, 32, mx.bfloat16, 90, 200),
          ("nvfp4", 8, 2, 64, mx.bfloat16, 90, 200), ("nvfp4", 128, 8, 32, mx.float32, 25, 40), ("affine4_g64", 8, 2, 128, mx.float32, 25, 40))
PRODUCTS = (("nvfp4", 128, 8, 1, 40, 60), ("affine4_g64", 128, 8, 1, 40, 60), ("nvfp4", 8, 2, 64, 100, 150), ("affine4_g64", 8, 2, 64, 100, 150))


def gates(show: Show) -> list[Gate]:
    """Every line that must hold; the ratios to MLX, whose CPU path may get better, are shown and not judged."""
    gate = Gates(show)
    for dtype, names in TYPES:
        for name in names:
            for rows, bound in BOUNDS.items():
                result = grouped(name, rows, dtype)
                told = f"1 thread, {name} {str(dtype).split('.')[-1]}, {rows} rows an expert ({result['gflops']:.0f} GFLOP/s)"
                if bound is None:
                    gate(f"{told}: packed bytes a second over a plain read", result["stream_fraction"], 0.22, aim=0.45)
                else:
                    gate(f"{told}: speed over NumPy's sgemm", result["sgemm_fraction"], bound, aim=AIMS[rows])
    seen = memory()
    gate(f"switch_glu, 2048 tokens ({seen['seconds']:.1f} s): MiB a thread beyond inputs, result and activations", seen["beyond_per_thread"] / 2**20, 1.0, at_least=False)
    ratios(show)
    return gate.found


def ratios(show: Show) -> list[dict]:
    """Against MLX: expected, not judged."""
    results = []
    for name, e, k, tokens, goal, aim in PRODUCTS:
        results.append(against_gather_qmm(name, e, k, tokens))
        show(_told(f"gather_qmm {name} bfloat16, {e} experts, k {k}, {tokens} tokens, 1 thread, over mx.gather_qmm", results[-1]["ratio"], goal, aim))
    for name, e, k, tokens, dtype, goal, aim in LAYERS:
        results.append(against_mlx_lm(name, e, k, tokens, dtype))
        ms, why = results[-1]["ms"], results[-1]["unjudged"]
        show(_told(f"switch_glu {name} {str(dtype).split('.')[-1]}, {e} experts, k {k}, {tokens} tokens, 2 threads ({ms['ours']:.2f} ms) over mlx-lm's form ({ms['mlx-lm']:.0f} ms)",
                   results[-1]["ratio"], goal, aim) + (f"; {why}" if why else ""))
    return results


def _told(name: str, ratio: float, goal: float, aim: float) -> str:
    return f"{'reached' if ratio >= goal else 'missed':10s} {name}: {ratio:.0f}x (expected {goal}, aim {aim})"


def table(show: Show) -> dict:
    show(f"gather_qmm, one thread, CPU time, K {K}, N {N}: share of NumPy's sgemm, GFLOP/s; of the packed bytes: GB/s, share of a plain read")
    shares = []
    for name in FORMATS:
        line = [grouped(name, rows, rounds=8) for rows in BOUNDS]
        shares += line
        show(f"  {name:12s} " + "  ".join(f"{r['rows']:3d} rows: {r['sgemm_fraction']:.2f} ({r['gflops']:.0f})" for r in line) +
             f"  stream at 1 row: {line[0]['gb_s']:.1f} GB/s = {line[0]['stream_fraction']:.2f}")
    show("Layers at full size, 2 threads")
    layers = []
    for tokens in (1, 16, 128, 2048):
        seen = memory(tokens)
        layers.append(seen)
        show(f"  switch_glu, {tokens:4d} tokens, 128 experts, k 8: {seen['seconds'] * 1e3:8.1f} ms, {seen['gflops']:5.0f} GFLOP/s, each weight decoded {seen['decoded']:.2f} times, "
             f"{math.ceil(max(0, seen['beyond_per_thread']) / 1024)} KiB a thread beyond inputs, result and activations")
    return {"shares": shares, "layers": layers, "mlx": ratios(show)}


if __name__ == "__main__":
    sys.exit(command(__doc__, gates, table))
