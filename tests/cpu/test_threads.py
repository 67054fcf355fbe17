"""The pool: many threads and streams, fork, bounds on threads and memory."""

from __future__ import annotations

import threading

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.soak import _fork, soak
from mlx_tensorops.formats import by_name
from mlx_tensorops.primitives import _cpu

from .oracle import check, expected, random
from .quant import expected as quantised
from .quant import qmm, stored


def test_soak(configure):
    """The short form; `python -m benchmarks.gemm --gate` runs 8 threads x 2,000 calls."""
    configure(threads=3)
    seen = soak(threads=8, calls=800)
    assert seen["child_exit"] == 0
    # A lost result of each call would be 300 MB; buffers still in flight at a stop are up to 4 MB each.
    assert seen["growth_mb"] < 8.0, seen


def test_results_do_not_depend_on_the_number_of_threads(configure, product):
    """Each output is summed in one order, whoever computes it: bit-identical for a given tiling of K."""
    rng = np.random.default_rng(31)
    for shape in ((300, 500, 600), (1, 3000, 700), (64, 2048, 512)):
        for dtype in (mx.float32, mx.bfloat16):
            a, b = random(rng, shape[::2], dtype), random(rng, (shape[2], shape[1]), dtype)
            results = []
            for threads in (1, 2, 5):
                configure(threads=threads, blas="never")
                results.append(np.array(product(a, b, mx.float32)))
            assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


@pytest.mark.parametrize("transpose", (True, False))
def test_quantised_results_do_not_depend_on_the_number_of_threads(configure, transpose):
    """Which columns a thread takes together depends on when it comes; what it computes does not. Sizes end in the middle of a tile."""
    rng, form = np.random.default_rng(33), by_name("mxfp8")
    for batch, m, n, k in (((), 1, 4128, 1024), ((), 5, 4128, 512), ((), 300, 1376, 256), ((3,), 9, 1376, 256), ((70,), 1, 32, 128)):
        s, x = stored(rng, form, n, k, transpose, batch=batch), random(rng, (*batch, m, k), mx.bfloat16)
        configure(threads=1)
        want = np.array(qmm(x, s, mx.float32))
        check(mx.array(want), *quantised(x, s))
        for threads in (2, 5):
            configure(threads=threads)
            for _ in range(5):
                assert (np.array(qmm(x, s, mx.float32)) == want).all(), (threads, batch, m)


def test_pool_is_bounded_and_shared(configure, product):
    """However many threads call, the engine has threads - 1 workers."""
    configure(threads=3)
    rng = np.random.default_rng(32)
    a, b = random(rng, (400, 400), mx.float32), random(rng, (400, 400), mx.float32)
    want, slack = expected(a, b)
    mx.eval(a, b)
    failures = []

    def work():
        try:
            for _ in range(10):
                check(product(a, b, stream=mx.new_stream(mx.cpu) if _ == 0 else None), want, slack)
        except BaseException as error:
            failures.append(error)

    before = _cpu.info()["worker_threads"]
    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not failures and not any(t.is_alive() for t in threads)
    assert _cpu.info()["worker_threads"] <= max(before, 2)


@pytest.mark.parametrize("blas", ("never", "always"))
def test_fork_with_a_sleeping_pool(configure, product, blas):
    configure(threads=4, blas=blas)
    rng = np.random.default_rng(33)
    a, b = random(rng, (500, 500), mx.float32), random(rng, (500, 500), mx.float32)
    check(product(a, b), *expected(a, b))
    assert _cpu.info()["worker_threads"] >= 3
    case = (np.array(a), np.array(b), np.array(a).astype(np.float64) @ np.array(b))
    assert _fork(product, [case]) == 0
    check(product(a, b), *expected(a, b))


def test_no_blas_is_reported_and_harmless(configure, product):
    rng = np.random.default_rng(34)
    a, b = random(rng, (300, 300), mx.float32), random(rng, (300, 300), mx.float32)
    for path, reason in (("", "scipy-openblas32 is not installed"), ("/nowhere/libopenblas.so", "cannot open it: /nowhere/libopenblas.so"),
                         (_libm(), "lacks the scipy_openblas32 symbols")):
        configure(openblas_path=path, blas="always")
        info = _cpu.info()
        assert info["blas"] is None and reason in info["blas_reason"]
        check(product(a, b), *expected(a, b))


def _libm() -> str:
    import ctypes.util

    return ctypes.util.find_library("m")


def test_someone_else_may_change_the_threads_of_blas(configure, product):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    configure(threads=1, blas="always")
    rng = np.random.default_rng(35)
    a, b = random(rng, (300, 300), mx.float32), random(rng, (300, 300), mx.float32)
    mx.eval(product(a, b))
    with threadpoolctl.threadpool_limits(4, "blas"):
        check(product(a, b), *expected(a, b))
        ours = [x for x in threadpoolctl.threadpool_info() if "scipy_openblas32" in x["filepath"]]
        assert ours and all(x["num_threads"] == 1 for x in ours)
