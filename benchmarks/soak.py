"""Many threads, streams and a fork over the CPU engine: right answers, no deadlock, flat memory."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time

SHAPES = ((1, 64, 64), (1, 2048, 512), (3, 257, 130), (8, 96, 640), (64, 64, 64), (128, 128, 128), (200, 100, 300), (256, 256, 256), (384, 320, 256))
CHILD_SECONDS = 30


def soak(threads: int = 8, calls: int = 2000, fork: bool = True) -> dict[str, object]:
    """Run; raises on a wrong answer, a deadlock or a failed child. Returns what was seen."""
    import mlx.core as mx
    import numpy as np

    from mlx_tensorops.primitives import _cpu

    product = _cpu.matmul()
    cases = _cases(mx, np)
    errors: list[BaseException] = []
    seen: dict[str, object] = {"threads": threads, "calls": threads * calls}
    pause, resume = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
    stops = [calls * i // 4 for i in range(1, 4)] + [calls - 1]
    memory: list[int] = []

    def work(seed: int) -> None:
        try:
            # A stream belongs to the thread that made it.
            streams = [mx.default_stream(mx.cpu), mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)]
            for stream in streams:  # each thread that computes keeps a block of scratch from its first product on
                a, b, _ = cases[0]
                mx.eval(product(mx.array(a), mx.array(b), "float32", None, None, None, stream))
            order = random.Random(seed)
            for i in range(calls):
                a, b, want = order.choice(cases)
                got = product(mx.array(a), mx.array(b), "float32", None, None, None, streams[i % 3])
                if i % 16 == 0 or i == calls - 1:
                    error = np.abs(np.array(got) - want).max()
                    if not error < 1e-3:
                        raise AssertionError(f"{a.shape} @ {b.shape} is off by {error}")
                else:
                    mx.eval(got)
                del got
                if i in stops:
                    pause.wait(600)
                    resume.wait(600)
        except BaseException as error:
            errors.append(error)
            pause.abort()
            resume.abort()

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    try:
        # The threads stand between two calls while memory is counted and while the process forks: MLX's own
        # locks do not survive a fork inside a call. The engine's workers are alive, and the child lacks them.
        for stop in range(len(stops)):
            pause.wait(600)
            time.sleep(0.1)  # the stream threads are still letting go of the last buffers
            memory.append(_live())
            if fork and stop == 1:
                seen["child_exit"] = _fork(product, cases)
            resume.wait(600)
    except threading.BrokenBarrierError:
        pass
    for worker in workers:
        worker.join(600)
        if worker.is_alive():
            raise AssertionError("a thread is stuck")
    if errors:
        raise errors[0]
    # Streams, pools and scratch have come into being by the first stop.
    seen.update(seconds=time.perf_counter() - start, live_mb=[round(m / 2**20, 2) for m in memory],
                growth_mb=(memory[-1] - memory[0]) / 2**20)
    return seen


def _cases(mx, np):
    """Operands as NumPy arrays (an MLX array belongs to its thread's stream until evaluated), with float64 results."""
    chance = np.random.default_rng(5)
    cases = []
    for m, n, k in SHAPES:
        for kind in (np.float32, np.float16):
            a = chance.standard_normal((m, k)).astype(kind)
            b = chance.standard_normal((k, n)).astype(kind)
            cases.append((a, b, a.astype(np.float64) @ b.astype(np.float64)))
    return cases


def _fork(product, cases) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(_child(product, cases))
    end = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code != 0:
                raise AssertionError(f"the forked child ended with {code}")
            return code
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the forked child is stuck")


def _child(product, cases) -> int:
    """All cases on a new stream: the parent's stream threads do not exist here."""
    try:
        import mlx.core as mx
        import numpy as np

        stream = mx.new_stream(mx.cpu)
        for a, b, want in cases:
            got = product(mx.array(a), mx.array(b), "float32", None, None, None, stream)
            mx.eval(got)
            if not np.abs(np.array(got) - want).max() < 1e-3:
                return 2
        return 0
    except BaseException:
        return 3


class _MallInfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def _live() -> int:
    """Bytes allocated and not freed (glibc), else bytes resident. The resident size of a process with 30 threads
    grows for minutes by free blocks that each thread's arena keeps, with MLX's own operations too."""
    count = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if count:
        count.restype = _MallInfo2
        info = count()
        return info.uordblks + info.hblkhd
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
