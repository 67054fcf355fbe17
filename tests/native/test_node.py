"""The graph node on a CPU stream: values, layouts, replays, threads, gradients, errors."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops
from mlx_tensorops import rules

from .stub import options, row, text, variants

RNG = np.random.default_rng(7)


def random(*shape):
    return mx.array(RNG.standard_normal(shape), dtype=mx.float32)


def oracle(a, b):
    return np.array(a).astype(np.float64) @ np.array(b).astype(np.float64)


def assert_product(c, a, b):
    """c was summed in double and rounded once to float32."""
    exact = oracle(a, b)
    bound = 2.0**-23 * (np.abs(np.array(a).astype(np.float64)) @ np.abs(np.array(b).astype(np.float64))) + 1e-300
    assert np.array(c).shape == exact.shape
    assert np.all(np.abs(np.array(c).astype(np.float64) - exact) <= bound)


VIEWS = {
    "contiguous": lambda r, c: random(r, c),
    "transposed": lambda r, c: random(c, r).T,
    "sliced with an offset": lambda r, c: random(r + 3, c + 5)[2 : r + 2, 3 : c + 3],
    "negative strides": lambda r, c: random(r, c)[::-1, ::-1],
    "steps": lambda r, c: random(2 * r, 3 * c)[::2, ::3],
    "negative steps of a transpose": lambda r, c: random(3 * c, 2 * r).T[::-2, ::-3],
    "stride 0 rows": lambda r, c: mx.broadcast_to(random(1, c), (r, c)),
    "stride 0 columns": lambda r, c: mx.broadcast_to(random(r, 1), (r, c)),
    "stride 0 both": lambda r, c: mx.broadcast_to(random(1, 1), (r, c)),
}


@pytest.mark.parametrize("left", VIEWS)
@pytest.mark.parametrize("right", VIEWS)
def test_any_layout(ext, stub, left, right):
    a, b = VIEWS[left](5, 7), VIEWS[right](7, 11)
    assert_product(ext.launch2(variants(), a, b, stub.launcher(), mx.cpu), a, b)


def test_a_read_outside_the_view_is_seen(ext, stub):
    """The stand-in shows NaN around the exposed bytes; the array's own buffer holds a 5 there."""
    base = mx.full((4, 4), 5.0)
    first = variants(row("reads_outside"))
    assert mx.isnan(ext.launch2(first, base[1:, 1:], mx.zeros((3, 3)), stub.launcher(), mx.cpu)[0, 0]).item()


def test_launch_takes_the_lists_form(ext, stub):
    a, b = random(4, 6), random(6, 3)
    (c,) = ext.launch(variants(), [a, b], stub.launcher(), mx.cpu)
    assert_product(c, a, b)


def test_two_outputs(ext, stub):
    shape = [text(rules.dim(0, 0))]
    both = variants(
        row("sum_and_difference", grid=("1", "1", "1"), bindings=[
            ("input", 0), ("input", 1), ("output", 0), ("output", 1), ("scalars", "i", shape)]),
        op="sum_and_difference", checks=[], outputs=[("float32", shape), ("float32", shape)])
    x, y = random(33), random(33)
    plus, minus = ext.launch(both, [x, y], stub.launcher(), mx.cpu)
    np.testing.assert_array_equal(np.array(minus), np.array(x) - np.array(y))
    np.testing.assert_array_equal(np.array(plus), np.array(x) + np.array(y))


def test_the_launch_that_arrives(ext, stub):
    a, b = random(130, 8), random(8, 300)[::-1]
    launcher = stub.launcher(layout=2, layout_seed=99, order_seed=5, max_findings=3)
    mx.eval(ext.launch2(variants(row(threadgroup_args=[64, 32])), a, b, launcher, mx.cpu))
    assert list(stub.last.grid) == [3, 3, 1] and list(stub.last.group) == [128, 1, 1]
    assert list(stub.last.threadgroup_args)[:3] == [64, 32, 0]
    assert [(x.index, x.bytes, x.offset, x.writable) for x in stub.last_buffers] == [
        (0, 4160, 0, 0), (1, 9600, 4 * 7 * 300, 0), (2, 156000, 0, 1), (3, 48, 0, 0)]
    seen = stub.last_options
    assert (seen.layout, seen.layout_seed, seen.order_seed, seen.max_findings) == (2, 99, 5, 3)


def test_a_kernel_is_prepared_once_per_launcher(ext, stub):
    a, b = random(2, 3), random(3, 2)
    launcher = stub.launcher()
    same_source, other_source = variants(), variants(row(source="// mathul"))
    for _ in range(3):
        mx.eval(ext.launch2(same_source, a, b, launcher, mx.cpu), ext.launch2(variants(), a, b, launcher, mx.cpu))
    assert stub.prepared == [("// matmul", "matmul")]
    mx.eval(ext.launch2(other_source, a, b, launcher, mx.cpu))
    assert stub.prepared[1:] == [("// mathul", "matmul")]
    mx.eval(ext.launch2(same_source, a, b, stub.launcher(), mx.cpu))
    assert len(stub.prepared) == 3


def test_graph_building_neither_prepares_nor_evaluates(ext, stub):
    unready = ext.launch2(variants(row("faulty")), random(2, 3), random(3, 2), stub.launcher(), mx.cpu)
    lazy = ext.launch2(variants(), unready, random(2, 2), stub.launcher(), mx.cpu)
    assert lazy.shape == (2, 2) and lazy.dtype == mx.float32
    assert stub.prepared == []


def test_a_chain_within_one_evaluation(ext, stub):
    launcher, set_ = stub.launcher(), variants()
    a, b, c = random(4, 5), random(5, 6), random(6, 3)
    ab = ext.launch2(set_, a, b, launcher, mx.cpu)
    abc = ext.launch2(set_, ab.T.T, c, launcher, mx.cpu)
    mx.eval(abc)
    assert_product(abc, ab, c)


def test_shapeless_replay_takes_new_shapes_and_layouts(ext, stub):
    launcher = stub.launcher()
    rows_adjoin = rules.eq(rules.stride(0, 1), 1) & rules.eq(rules.stride(1, 1), 1)
    set_ = variants(row(key="nn", when=rows_adjoin), row(key="other"))
    traced = mx.compile(lambda x, y: ext.launch2(set_, x, y, launcher, mx.cpu), shapeless=True)
    cases = [(random(64, 32), random(32, 128)), (random(3, 5), random(5, 7)), (random(5, 3).T, random(7, 5).T),
             (random(1, 9)[:, 2:], random(7, 4)), (mx.broadcast_to(random(1, 6), (8, 6)), random(6, 6)[::-1]),
             (mx.zeros((0, 4)), random(4, 3)), (mx.zeros((2, 0)), mx.zeros((0, 3)))]
    ext.trace_start(100)
    for a, b in cases:
        assert_product(traced(a, b), a, b)
    assert [r["row"] for r in ext.trace_stop()] == ["nn", "nn", "other", "nn", "nn"]


def test_shapeless_replay_repeats_the_checks(ext, stub):
    launcher = stub.launcher()
    traced = mx.compile(lambda x, y: ext.launch2(variants(), x, y, launcher, mx.cpu), shapeless=True)
    mx.eval(traced(random(4, 5), random(5, 6)))
    with pytest.raises(ValueError, match=r"\[matmul\] a and b disagree about K"):
        traced(random(4, 5), random(6, 6))  # when the graph is rebuilt, before anything is evaluated


def test_compile_merges_equal_nodes_only(ext, stub):
    def evaluations(first, second, launchers):
        def both(x, y):
            one = ext.launch2(first, x, y, launchers[0], mx.cpu) + 1
            return one * (ext.launch2(second, x, y, launchers[1], mx.cpu) + 1)
        a, b = random(4, 5), random(5, 6)
        ext.trace_start(10)
        c = mx.compile(both)(a, b)
        np.testing.assert_allclose(np.array(c), (oracle(a, b) + 1) ** 2, rtol=1e-5, atol=1e-5)
        return len(ext.trace_stop())

    set_, launcher = variants(), stub.launcher()
    assert evaluations(set_, set_, (launcher, launcher)) == 1
    assert evaluations(set_, variants(), (launcher, launcher)) == 2
    assert evaluations(set_, set_, (launcher, stub.launcher())) == 2


@pytest.mark.parametrize("a, b", [((0, 4), (4, 3)), ((3, 4), (4, 0)), ((0, 0), (0, 0))])
def test_empty_outputs(ext, stub, a, b):
    c = ext.launch2(variants(), mx.zeros(a), mx.zeros(b), stub.launcher(), mx.cpu)
    assert np.array(c).shape == (a[0], b[1])
    assert stub.prepared == []


def test_a_sum_over_nothing_is_zero(ext, stub):
    for _ in range(4):  # recycled memory is dirty
        mx.eval(mx.full((37, 41), float("nan")))
        c = ext.launch2(variants(), mx.zeros((37, 0)), mx.zeros((0, 41)), stub.launcher(), mx.cpu)
        np.testing.assert_array_equal(np.array(c), np.zeros((37, 41)))
    assert stub.prepared == []


@pytest.mark.parametrize("stream", [
    lambda: None, lambda: mx.cpu, lambda: mx.Device(mx.cpu), lambda: mx.default_stream(mx.cpu), lambda: mx.new_stream(mx.cpu)])
def test_a_stream_may_be_given_in_every_form_that_mlx_takes(ext, stub, stream):
    a, b = random(3, 4), random(4, 2)
    assert_product(ext.launch2(variants(), a, b, stub.launcher(), stream()), a, b)
    assert_product(ext.launch(variants(), [a, b], stub.launcher(), stream())[0], a, b)


def test_other_streams_and_threads(ext, stub):
    launcher, set_, failures = stub.launcher(), variants(), []

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            stream = mx.new_stream(mx.cpu)
            for _ in range(20):
                m, k, n = rng.integers(1, 9, 3)
                a = mx.array(rng.standard_normal((m, k)), dtype=mx.float32)
                b = mx.array(rng.standard_normal((n, k)), dtype=mx.float32).T
                assert_product(ext.launch2(set_, a, b, launcher, stream), a, b)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads) and failures == []


def gradient(launch2, set_of, launcher):
    """dA = G Bt, dB = At G, through the same kernel."""
    def vjp(primals, cotangents, argnums):
        (a, b), (g,) = primals, cotangents
        pairs = {0: (g, b.T), 1: (a.T, g)}
        return [launch2(set_of(), *pairs[i], launcher, mx.cpu) for i in argnums]
    return vjp


def test_gradients_through_the_callable(ext, stub):
    launcher, holder = stub.launcher(), []
    set_ = variants(vjp=gradient(ext.launch2, lambda: holder[0], launcher))
    holder.append(set_)
    a, b, w = random(4, 5), random(5, 6), random(4, 6)
    loss = lambda x, y: (ext.launch2(set_, x, y, launcher, mx.cpu) * w).sum()
    da, db = mx.grad(loss, argnums=(0, 1))(a, b)
    assert_product(da, w, b.T)
    assert_product(db, a.T, w)
    only_b = mx.grad(loss, argnums=1)(a, b)
    assert_product(only_b, a.T, w)
    compiled = mx.compile(mx.grad(loss))(a, b)
    assert_product(compiled, w, b.T)


def test_gradient_errors(ext, stub):
    a, b = random(2, 2), random(2, 2)
    loss = lambda set_: mx.grad(lambda x: ext.launch2(set_, x, b, stub.launcher(), mx.cpu).sum())(a)
    with pytest.raises(ValueError, match=r'\[matmul\] has no gradient; use engine="mlx"'):
        loss(variants())

    def raises(primals, cotangents, argnums):
        raise ValueError("no gradient for a quantised b")

    with pytest.raises(ValueError, match=r"\[matmul\] gradient: no gradient for a quantised b"):
        loss(variants(vjp=raises))
    with pytest.raises(RuntimeError, match="expected a list of 1 arrays, one per argnum"):
        loss(variants(vjp=lambda primals, cotangents, argnums: []))
    with pytest.raises(RuntimeError, match="expected a list of 1 arrays"):
        loss(variants(vjp=lambda primals, cotangents, argnums: 3))
    with pytest.raises(TypeError):
        variants(vjp=3)


def test_vmap_says_that_it_is_missing(ext, stub):
    with pytest.raises(ValueError, match="Not implemented for matmul"):
        mx.vmap(lambda x: ext.launch2(variants(), x, random(3, 3), stub.launcher(), mx.cpu))(mx.zeros((2, 3, 3)))


def test_errors_of_prepare_are_the_evaluations(ext, stub):
    a, b = random(2, 2), random(2, 2)

    def fails(source, kernel):
        raise TypeError(f"cannot compile {kernel} from {source}")

    with pytest.raises(RuntimeError, match="preparing kernel matmul: TypeError: cannot compile matmul from // matmul"):
        mx.eval(ext.launch2(variants(), a, b, stub.launcher(fails), mx.cpu))

    def refuses(source, kernel):
        raise ValueError("line 3: no such function")

    with pytest.raises(ValueError, match="preparing kernel matmul: line 3: no such function"):
        mx.eval(ext.launch2(variants(), a, b, stub.launcher(refuses), mx.cpu))
    for wrong in (0, None, "0x1000", -1):
        with pytest.raises(RuntimeError, match="preparing kernel matmul: expected the address of its entry point"):
            mx.eval(ext.launch2(variants(), a, b, stub.launcher(lambda s, k: wrong), mx.cpu))
    assert_product(ext.launch2(variants(), a, b, stub.launcher(), mx.cpu), a, b)  # the stream lives on


def test_findings_are_errors(ext, stub):
    a, b = random(2, 2), random(2, 2)
    with pytest.raises(RuntimeError) as error:
        mx.eval(ext.launch2(variants(row("faulty", key="r")), a, b, stub.launcher(), mx.cpu))
    assert "[matmul] row 'r': the emulator found 2 faults:" in str(error.value)
    assert '{"kind": "out_of_bounds"}\n{"kind": "divergence"}' in str(error.value)
    with pytest.raises(RuntimeError, match="the emulator refused the launch: group is larger than max_threads"):
        mx.eval(ext.launch2(variants(row("refused")), a, b, stub.launcher(), mx.cpu))
    assert_product(ext.launch2(variants(), a, b, stub.launcher(), mx.cpu), a, b)


def test_launchers_that_make_no_sense(ext, stub):
    with pytest.raises(ValueError, match="dispatch_address is 0"):
        ext.HostLauncher(0, options(), stub.prepare)
    with pytest.raises(ValueError, match=r"options has 3 bytes, hm_options has \d+"):
        ext.HostLauncher(1, b"abc", stub.prepare)
    with pytest.raises(ValueError, match="options are of emulator ABI 7, this extension speaks 1"):
        ext.HostLauncher(1, options(abi_version=7), stub.prepare)
    with pytest.raises(TypeError):
        ext.HostLauncher(1, options(), None)


def test_without_an_emulator_a_cpu_stream_is_an_error(ext):
    with pytest.raises(RuntimeError, match=r"\[matmul\] is a Metal kernel and was placed on a CPU stream.*hostmetal"):
        mx.eval(ext.launch2(variants(), random(2, 2), random(2, 2), None, mx.cpu))


def test_the_trace_is_bounded_and_keeps_the_last(ext, stub):
    launcher, set_ = stub.launcher(), variants()
    ext.trace_start(3)
    for n in range(1, 6):
        mx.eval(ext.launch2(set_, random(2, 3), random(3, 128 * n), launcher, mx.cpu))
    records = ext.trace_stop()
    assert [(r["index"], r["grid"]) for r in records] == [(2, (3, 1, 1)), (3, (4, 1, 1)), (4, (5, 1, 1))]
    one = records[0]
    assert (one["op"], one["row"], one["kernel"]) == ("matmul", "any", "matmul")
    assert (one["backend"], one["threads"]) == ("hostmetal", (128, 1, 1))
    assert one["counters"]["matmul2d"] == 7 and one["counters"]["threadgroups"] == 3
    assert one["counters"]["device_load"] == [0, 11] + [0] * 29
    mx.eval(ext.launch2(set_, random(2, 3), random(3, 3), launcher, mx.cpu))
    assert ext.trace_stop() == []
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        ext.trace_start(0)


def test_a_node_outlives_its_handles(ext, stub):
    a, b = random(3, 4), random(4, 5)
    lazy = ext.launch2(variants(), a, b, stub.launcher(), mx.cpu)
    gc.collect()
    assert_product(lazy, a, b)


def test_a_cycle_through_the_gradient_is_collected():
    class Marker:
        pass

    def make():
        marker, holder = Marker(), []
        def vjp(primals, cotangents, argnums):
            return marker, holder
        holder.append(variants(vjp=vjp))
        return weakref.ref(marker)

    alive = make()
    gc.collect()
    assert alive() is None


def test_a_gradient_lives_as_long_as_a_node_may_call_it(ext):
    """The node's reference is invisible to the collector, which must then not count the handle's."""
    class Marker:
        pass

    def make():
        marker, holder = Marker(), []
        holder.append(variants(vjp=lambda primals, cotangents, argnums: (marker, holder)))
        return weakref.ref(marker), ext.launch2(holder[0], random(2, 2), random(2, 2), None, mx.cpu)

    alive, node = make()
    gc.collect()
    assert alive() is not None
    del node
    gc.collect()
    assert alive() is None


def test_leaving_the_process_with_work_undone():
    code = """
import mlx.core as mx
from stub import variants
from mlx_tensorops.primitives import _native
holder = []
holder.append(variants(vjp=lambda p, c, n: holder))
lazy = _native.ext().launch2(holder[0], mx.zeros((2, 2)), mx.zeros((2, 2)), None, mx.cpu)
"""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(Path(mlx_tensorops.__file__).parents[1])])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
