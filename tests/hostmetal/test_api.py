"""The Python surface: what compile and dispatch accept, what is cached, and what happens beside other threads and processes."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.errors import TensorOpsError
from mlx_tensorops.hostmetal import abi, cache, cli, toolchain

from .planted_cases import BY_NAME

ADD = """
#include <metal_stdlib>
using namespace metal;
struct Params { int n; float scale; };
template <typename T, int SHIFT>
[[kernel, max_total_threads_per_threadgroup(SHIFT * 32)]] void add(const device T* x [[buffer(0)]], device T* y [[buffer(1)]],
    constant Params& p [[buffer(2)]], uint at [[thread_position_in_grid]]) {
  if (int(at) < p.n) y[at] = x[at] + T(p.scale) + T(SHIFT);
}
template [[host_name("add_float_2")]] [[kernel]] decltype(add<float, 2>) add<float, 2>;
constant int OFFSET [[function_constant(3)]];
kernel void shift(device int* x [[buffer(0)]], uint at [[thread_position_in_grid]]) { x[at] += OFFSET; }
"""
PARAMS = np.array((40, 0.5), np.dtype([("n", np.int32), ("scale", np.float32)]))


@pytest.fixture(scope="module")
def add():
    return hostmetal.compile(ADD, "add_float_2", function_constants={3: 1})


def test_instantiation_by_host_name_and_limit(add):
    x = np.arange(64, dtype=np.float32)
    result = add.dispatch(grid=1, threadgroup=64, buffers=[x, np.zeros_like(x), PARAMS])
    assert np.array_equal(result.outputs[1], np.where(np.arange(64) < 40, x + 2.5, 0))
    assert add.max_threads == 64
    with pytest.raises(hostmetal.HostMetalError, match=r"max_total_threads_per_threadgroup\(64\)"):
        add.dispatch(grid=1, threadgroup=65, buffers=[x, x, PARAMS])


def test_inputs_are_never_changed(add):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    result = add.dispatch(grid=1, threadgroup=64, buffers={"x": x, "y": y, "p": PARAMS})
    assert not y.any() and result.outputs[1].any() and result.outputs[0] is x and result.outputs[2] is PARAMS


@pytest.mark.parametrize("dtype, template", [(mx.bfloat16, "bfloat"), (mx.float16, "half"), (mx.float32, "float"), (mx.int32, "int")])
def test_mlx_arrays(dtype, template):
    kernel = hostmetal.compile(ADD, "add", template=(template, 1), function_constants={3: 1})
    x = mx.arange(32).astype(dtype)
    y = kernel.dispatch(grid=1, threadgroup=32, buffers=[x, mx.zeros_like(x), PARAMS]).outputs[1]
    assert y.dtype == dtype and mx.array_equal(y, x + mx.array(0.5).astype(dtype) + 1).item()


def test_ml_dtypes_and_template_by_mapping():
    kernel = hostmetal.compile(ADD, "add", template={"T": mx.bfloat16, "SHIFT": 1}, function_constants={3: 1})
    x = np.arange(32).astype(ml_dtypes.bfloat16)
    y = kernel.dispatch(grid=1, threadgroup=32, buffers=[x, np.zeros_like(x), PARAMS]).outputs[1]
    assert y.dtype == x.dtype and np.array_equal(y.astype(np.float32), np.arange(32) + 1.5)


def test_function_constants():
    kernel = hostmetal.compile(ADD, "shift", function_constants={3: 5})
    assert kernel.dispatch(grid=1, threadgroup=4, buffers=[np.zeros(4, np.int32)]).outputs[0].tolist() == [5] * 4
    with pytest.raises(hostmetal.CompileError, match=r"function constant 3 \(OFFSET\) has no value"):
        hostmetal.compile(ADD, "shift")


@pytest.mark.parametrize("values, wanted", [({}, [7, 8, 9]), ({1: np.int64(3), 2: mx.array(0.5), 9: "float4(1, 2, 3, 4)"}, [3, 0.5, 4])])
def test_optional_function_constants(tmp_path, values, wanted):
    """Of every kind of type, also in and for a header, and lint agrees; any scalar is a value."""
    (tmp_path / "h.h").write_text("constant float4 v [[function_constant(0x9)]];\n"
                                  "inline float last() { return is_function_constant_defined(v) && is_function_constant_defined(b) ? v.w : 9; }\n")
    source = """#include <metal_stdlib>
using namespace metal;
constant int n [[function_constant(1)]];
constant bfloat const b [[function_constant(2)]];
constant constexpr int used = is_function_constant_defined(n) ? n : 7;
#include "h.h"
kernel void f(device float* x [[buffer(0)]]) { x[0] = used; x[1] = is_function_constant_defined(b) ? float(b) : 8; x[2] = last(); }"""
    kernel = hostmetal.compile(source, function_constants=values, include=[tmp_path])
    assert kernel.dispatch(grid=1, threadgroup=1, buffers=[np.zeros(3, np.float32)]).outputs[0].tolist() == wanted
    assert hostmetal.lint(source, function_constants=values, include=[tmp_path]) == ()


@pytest.mark.parametrize("odd", [{"grid": None}, {"grid": "1"}, {"grid": (1, None)}, {"threadgroup": 1.0}, {"threadgroup": True}, {"buffers": None}, {"buffers": "xyz"},
                                 {"timeout": "1"}, {"timeout": None}, {"order_seed": "a"}, {"layout_seed": 1.5}, {"threadgroup_limit": "a"}, {"max_findings": None},
                                 {"threadgroup_memory": 5}, {"threadgroup_memory": {"a": 16}}, {"threadgroup_memory": {0: "16"}}], ids=str)  # fmt: skip
def test_odd_arguments_of_dispatch_are_named(add, odd):
    x = np.zeros(32, np.float32)
    with pytest.raises(TensorOpsError, match=f"{next(iter(odd)).replace('_', '.')}( is a|=| 0| a|: )"):
        add.dispatch(**{"grid": 1, "threadgroup": 32, "buffers": [x, x, PARAMS], **odd})


def test_numpy_integers_count_threadgroups(add):
    x = np.zeros(40, np.float32)
    assert add.dispatch(grid=np.int64(2), threadgroup=(np.int32(32), 1), threads=np.uint8(40), buffers=[x, x, PARAMS]).outputs[1].tolist() == [2.5] * 40


def test_partial_threadgroups(add):
    x = np.arange(40, dtype=np.float32)
    result = add.dispatch(grid=2, threadgroup=32, threads=40, buffers=[x, np.zeros_like(x), PARAMS])
    assert np.array_equal(result.outputs[1], x + 2.5)


def test_line_of_a_header_is_reported(tmp_path):
    (tmp_path / "load.h").write_text("// a header\ninline float load(const device float* p, uint i) {\n  return p[i + 1];\n}\n")
    source = '#include <metal_stdlib>\nusing namespace metal;\n#include "load.h"\nkernel void k(const device float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = load(x, i); }'
    kernel = hostmetal.compile(source, include=[tmp_path], checked=True)
    finding = kernel.dispatch(grid=1, threadgroup=8, buffers=[np.zeros(8, np.float32)] * 2, allow_findings=True).findings[0]
    assert (finding.file, finding.line, finding.kind, finding.offset) == ("load.h", 3, "out_of_bounds", 32)


def test_the_cache_starts_no_compiler(add, monkeypatch):
    monkeypatch.setattr(toolchain, "run", lambda *a, **k: pytest.fail("a compiler was started"))
    hostmetal.compile(ADD, "add_float_2", function_constants={3: 1})


def test_key_depends_on_everything(tmp_path, monkeypatch):
    """Another shim, flag or constant is another file; the loader would keep what it first loaded under a name."""
    first = hostmetal.compile(ADD, "shift", function_constants={3: 5}).path
    assert hostmetal.compile(ADD, "shift", function_constants={3: 6}).path != first
    real = toolchain.content_hash
    monkeypatch.setattr(toolchain, "content_hash", lambda folder: real(folder) + ("x" if folder == toolchain.INCLUDE else ""))
    assert hostmetal.compile(ADD, "shift", function_constants={3: 5}).path != first


_WORKER = """
import sys, numpy as np
from mlx_tensorops import hostmetal
kernel = hostmetal.compile(sys.argv[1])
print(kernel.dispatch(grid=1, threadgroup=4, buffers=[np.zeros(4, np.int32)]).outputs[0].tolist())
"""


def test_processes_share_one_build(tmp_path):
    source = f"kernel void f(device int* x) {{ x[0] = {os.getpid()}; }}"
    log = tmp_path / "log"
    environment = {**os.environ, "MLX_TENSOROPS_BUILD_LOG": str(log)}
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, source], stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    assert {w.communicate()[0].strip() for w in workers} == {str([os.getpid(), 0, 0, 0])}
    family, key = log.read_text().split()  # one line
    assert family == "hostmetal" and (cache.folder() / f"k-{key}.so").exists()


def test_threads_take_turns(add):
    x = np.arange(64, dtype=np.float32)
    wrong = []

    def work(i):
        for _ in range(20):
            y = add.dispatch(grid=1, threadgroup=64, buffers=[x + i, np.zeros_like(x), PARAMS], isolate=i % 2 == 0).outputs[1]
            if not np.array_equal(y[:40], x[:40] + i + 2.5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_fork_in_the_middle_of_a_dispatch_does_not_lock_up():
    kernel = hostmetal.compile("kernel void f(device int* x) { volatile device int* p = x; while (p[0] == 0) {} }")
    busy = threading.Thread(target=kernel.dispatch, kwargs=dict(grid=1, threadgroup=1, buffers=[np.zeros(1, np.int32)], isolate=False, timeout=1.0, allow_findings=True))
    busy.start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        try:
            done = kernel.dispatch(grid=1, threadgroup=1, buffers=[np.ones(1, np.int32)], isolate=False)
            os._exit(0 if done.findings == () else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    busy.join()


def test_struct_sizes_are_those_of_the_header(tmp_path):
    structs = {"hm_buffer": abi.Buffer, "hm_options": abi.Options, "hm_launch": abi.Launch, "hm_counters": abi.Counters, "hm_result": abi.Result}
    import ctypes

    checks = "\n".join(f"_Static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, \"{name}\");" for name, struct in structs.items())
    checks += f"\n_Static_assert(HM_ABI_VERSION == {abi.VERSION}, \"version\");\n"
    (tmp_path / "sizes.c").write_text(f'#include "hm_abi.h"\n{checks}')
    done = toolchain.run([*toolchain.find().cc, f"-I{toolchain.RUNTIME}", "-c", str(tmp_path / "sizes.c"), "-o", str(tmp_path / "sizes.o")])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["x86_64-linux-gnu", "aarch64-linux-gnu"])
def test_runtime_builds_for_both_machines(target, tmp_path):
    done = toolchain.run([*toolchain.find().cc, "-target", target, "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c", str(toolchain.RUNTIME / "rt.c"), "-o", str(tmp_path / "rt.o")])
    assert done.returncode == 0, done.stderr


def test_no_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toolchain, "_zig", lambda: None)
    with pytest.raises(hostmetal.ToolchainError, match=r"pip install 'mlx_tensorops\[hostmetal\]'"):
        toolchain._find.__wrapped__("", "/nonexistent")
    with pytest.raises(hostmetal.ToolchainError, match="is no clang >= 19"):
        toolchain._find.__wrapped__("/bin/true", "")


def test_import_needs_neither_numpy_nor_a_compiler():
    code = "import sys; import mlx_tensorops.hostmetal; assert 'numpy' not in sys.modules and 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_command_line(tmp_path, capsys):
    source = tmp_path / "stage.metal"
    source.write_text(BY_NAME["stage"].source)
    arguments = ["run", str(source), "--grid", "4", "--threadgroup", "128", "--buffer", "f32:512:arange", "--buffer", "f32:512", "--buffer"]
    assert cli.main([*arguments, "0", "--json", "--save", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["counters"]["barriers"] == 4
    assert np.load(tmp_path / "buffer1.npy")[0] == 127
    assert cli.main([*arguments, "4"]) == 1
    assert "race" in capsys.readouterr().out
    assert cli.main([*arguments, "none"]) == 2
    assert "is no buffer" in capsys.readouterr().err
    assert cli.main(["lint", str(source)]) == 0
    source.write_text("#include <metal_stdlib>\nfloat f(float* p) { return *p; }")
    assert cli.main(["lint", str(source)]) == 1
    assert "without device, constant, thread or threadgroup" in capsys.readouterr().out


def test_pytest_plugin(tmp_path):
    """In another project's tests: a finding fails a test, and so does a result that depends on the layout."""
    adversary = Path(__file__).parent / "planted" / "adversary.metal"
    (tmp_path / "test_theirs.py").write_text(f"""
import numpy as np
SOURCE = open({str(adversary)!r}).read()
A, B, C = np.ones((16, 16), np.float16) * np.arange(16, dtype=np.float16), np.ones((16, 32), np.float16) * np.arange(32, dtype=np.float16), np.zeros((16, 32), np.float32)
def test_right(metal):
    assert metal.compile(SOURCE, "half_product", checked=False).dispatch(grid=1, threadgroup=32, buffers=[A, B, C, 0]).counters.matmul2d == 1
def test_lane_map(metal):
    metal.compile(SOURCE, "half_product", checked=False).dispatch(grid=1, threadgroup=32, buffers=[A, B, C, 1])
""")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "mlx_tensorops.hostmetal.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider", str(tmp_path)],
                          capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    assert "1 failed, 1 passed" in done.stdout and "the kernel relies on a lane map" in done.stdout, done.stdout


COPIES = """#include <metal_stdlib>
using namespace metal;
struct Shape { int rows; int columns; float scale[2]; };
kernel void k(constant Shape& one [[buffer(0)]], constant Shape* many [[buffer(1)]], device float* y [[buffer(2)]],
              uint i [[thread_position_in_grid]]) {
  Shape a = one;
  const Shape b = *many;
  Shape c = many[i];
  a.rows += 1;
  y[i] = float(a.rows * 1000 + b.columns * 100 + c.rows) + a.scale[1] + b.scale[0] + c.scale[1];
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_structs_are_copied_out_of_constant_memory(checked):
    kind = np.dtype([("rows", np.int32), ("columns", np.int32), ("scale", np.float32, 2)])
    one = np.array([(4, 5, (0.5, 0.25))], kind)
    many = np.array([(1, 2, (0.125, 0.0625)), (7, 8, (0.0, 0.5))], kind)
    result = hostmetal.compile(COPIES, checked=checked).dispatch(grid=2, threadgroup=1, buffers=[one.tobytes(), many.tobytes(), np.zeros(2, np.float32)])
    assert result.outputs[2].tolist() == [5000 + 200 + 1 + 0.25 + 0.125 + 0.0625, 5000 + 200 + 7 + 0.25 + 0.125 + 0.5]


LITERALS = """#include <metal_stdlib>
using namespace metal;
template <typename T> T third(T x) { return x * 0.1 + .5e-8 - 1e-9; }
kernel void k(device float* y [[buffer(0)]]) { y[0] = third(3.0f); y[1] = sizeof(0.1); y[2] = 0x10 + 1.; }
"""


def test_plain_literals_are_floats_in_templates_too():
    got = hostmetal.compile(LITERALS).dispatch(grid=1, threadgroup=1, buffers=[np.zeros(3, np.float32)]).outputs[0]
    f = np.float32
    assert got.tolist() == [f(f(f(3) * f(0.1)) + f(0.5e-8)) - f(1e-9), 4.0, 17.0]
