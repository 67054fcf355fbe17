"""Input that nobody should give: an error or a bounded, reported stop; this process goes on."""

import time

import numpy as np
import pytest

from mlx_tensorops import TensorOpsError, hostmetal

COPY = """
#include <metal_stdlib>
using namespace metal;
kernel void copy(const device float* x [[buffer(0)]], device float* y [[buffer(1)]], constant int& spin [[buffer(2)]],
                 uint at [[thread_position_in_grid]]) {
  volatile constant int* s = &spin;
  while (s[0] == 1) {}
  y[at] = x[at];
}
"""
X = np.arange(64, dtype=np.float32)


@pytest.fixture(scope="module")
def copy():
    return hostmetal.compile(COPY)


@pytest.mark.parametrize("source, text", [
    ("kernel void f() { /* never closed", "line 1: this comment never ends"),
    ('\n\nkernel void f() { "never closed\n }', "line 3: this string never ends"),
    ("", "the source has 0 kernels"),
    ("kernel", "the source has 0 kernels"),
    ("kernel void f(", "the source has 0 kernels"),
    ("[[kernel]] void f() {", "expected '}'"),
    ("kernel void f(device float* x [[buffer(31)]]) {}", "index 31"),
    ("kernel void f(device float* x [[buffer(n)]]) {}", "no integer literal"),
    ("kernel void f(thread float* x [[buffer(0)]]) {}", "points into the thread address space"),
    ("kernel void f(float x) {}", "neither an address space nor an attribute"),
    ("kernel void f(float x [[stage_in]]) {}", "the attribute stage_in"),
    ("kernel void f(device float*) {}", "has no name"),
    ("kernel void f() {}\nkernel void f(device int* x) {}", "cannot be overloaded"),
    ("kernel void f() { unknown(); }", "undeclared identifier 'unknown'"),
    ("kernel void f() { caf\u00e9(); }", "pure ASCII"),
    ("kernel void f() { \0 }", "NUL"),
    ("#include <no_such_header>\nkernel void f() {}", "no_such_header"),
    ("#error stop here\nkernel void f() {}", "stop here"),
    ("kernel void f() {" + "(" * 5000 + ")" * 5000 + ";}", "does not compile"),
    ("x" * (5 << 20), "characters"),
])  # fmt: skip
def test_source(source, text):
    with pytest.raises(hostmetal.CompileError, match=text.replace("(", r"\(")):
        kernel = "f" if source.count("kernel void f") > 1 else None
        hostmetal.compile(source, kernel)


def test_a_megabyte_of_source_is_bounded():
    filler = "// a comment that fills\n" * 40000 + "constant int table[4] = {1, 2, 3, 4};\n" + "\n".join(f"int f{i}(int x) {{ return x + {i}; }}" for i in range(3000))
    start = time.monotonic()
    kernel = hostmetal.compile(filler + COPY, "copy")
    assert len(filler) > 1 << 20 and time.monotonic() - start < 60
    assert np.array_equal(kernel.dispatch(grid=1, threadgroup=64, buffers=[X, X * 0, 0]).outputs[1], X)


def test_missing_kernel_lists_what_there_is():
    with pytest.raises(hostmetal.CompileError, match="no kernel 'nope'[^$]*copy"):
        hostmetal.compile(COPY, "nope")


@pytest.mark.parametrize("changes, text", [
    (dict(buffers=[X]), "takes 3 buffers, 1 were given"),
    (dict(buffers=[X] * 9), "takes 3 buffers, 9 were given"),
    (dict(buffers={"x": X, "y": X}), "buffer 'spin' is missing"),
    (dict(buffers={"x": X, "y": X, "spin": 0, "zz": 1}), "no buffer 'zz'"),
    (dict(buffers=[X, X, object()]), "is a object"),
    (dict(buffers=[X, X, 2**40]), "does not fit"),
    (dict(buffers=[X, 1.0j, 0]), "is a complex"),
    (dict(grid=0), "grid=0"),
    (dict(grid=(1, 0, 1)), "from 1 to"),
    (dict(grid=-1), "grid=-1"),
    (dict(grid=(1, 1, 1, 1)), "one to three integers"),
    (dict(grid=1.5), "grid=1.5"),
    (dict(threadgroup=0), "threadgroup=0"),
    (dict(threadgroup=1025), "more than 1024 threads"),
    (dict(threadgroup=(32, 32, 2)), "more than 1024 threads"),
    (dict(grid=(2**32 - 1, 2**32 - 1)), "threadgroups"),
    (dict(threads=63, grid=2, threadgroup=64), "make a grid of"),
    (dict(threadgroup_memory={0: 17}), "a multiple of 16"),
    (dict(layout="m5"), "layout='m5' is unknown"),
    (dict(colour=3), "colour= is no option"),
    (dict(timeout=0), "timeout=0"),
])  # fmt: skip
def test_dispatch(copy, changes, text):
    arguments = dict(grid=1, threadgroup=64, buffers=[X, X * 0, 0]) | changes
    with pytest.raises(TensorOpsError, match=text.replace("(", r"\(")):
        copy.dispatch(**arguments)
    assert np.array_equal(copy.dispatch(grid=1, threadgroup=64, buffers=[X, X * 0, 0]).outputs[1], X)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_kernel_that_never_ends(copy, isolate):
    start = time.monotonic()
    with pytest.raises(hostmetal.HostMetalError, match="timeout") as caught:
        copy.dispatch(grid=1, threadgroup=64, buffers=[X, X, 1], isolate=isolate, timeout=0.3)
    assert time.monotonic() - start < 3
    assert caught.value.findings[0].line == 7
    assert np.array_equal(copy.dispatch(grid=1, threadgroup=64, buffers=[X, X * 0, 0], isolate=isolate).outputs[1], X)


def test_lines_are_known_after_other_kernels_ran(copy):
    """Names of files lay in the mapping of a library that another kernel's dispatch had closed: the process died."""
    stray = hostmetal.compile(COPY.replace("y[at]", "y[at + 64]"), checked=True)
    for _ in range(3):
        found = stray.dispatch(grid=1, threadgroup=64, buffers=[X, X, 0], allow_findings=True, isolate=False).findings
        assert {(f.kind, f.line) for f in found} == {("out_of_bounds", 8)}, found
        copy.dispatch(grid=1, threadgroup=64, buffers=[X, X * 0, 0], isolate=False)


def test_a_million_threadgroups_stop_in_time(copy):
    big = np.zeros(64, np.float32)
    start = time.monotonic()
    with pytest.raises(hostmetal.HostMetalError, match="out_of_bounds"):
        copy.dispatch(grid=10**6, threadgroup=64, buffers=[big, big, 0])
    source = "kernel void f(device int* x) { x[0] = 1; }"
    try:
        hostmetal.compile(source).dispatch(grid=(100, 100, 100), threadgroup=1, buffers=[np.zeros(1, np.int32)], timeout=5.0)
    except hostmetal.HostMetalError as error:
        assert error.findings[0].kind == "timeout"
    assert time.monotonic() - start < 12


def test_unaligned_and_strided_views_are_copied_as_they_are(copy):
    strided = np.arange(128, dtype=np.float32)[::2]
    assert np.array_equal(copy.dispatch(grid=1, threadgroup=64, buffers=[strided, X * 0, 0]).outputs[1], strided)
    assert copy.dispatch(grid=1, threadgroup=64, buffers=[strided.tobytes(), X * 0, 0]).outputs[0] == strided.tobytes()
