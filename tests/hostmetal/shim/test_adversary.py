"""Run-time switches: each changes exactly what it says, and each catches a kernel that nothing else catches."""

import numpy as np
import pytest

from mlx_tensorops import hostmetal

from .support import HEADER

# What the switches act on, as template parameters: types, relaxed_precision, mode, and whether the kernel zeroes its tile.
KERNEL = """
template <typename A, typename C, bool relaxed, bool accumulate, bool zero>
[[kernel]] void product(device A* a [[buffer(0)]], device A* b [[buffer(1)]], device C* c [[buffer(2)]]) {
  constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, relaxed,
                                         accumulate ? matmul2d_descriptor::mode::multiply_accumulate : matmul2d_descriptor::mode::multiply);
  matmul2d<d, execution_simdgroup> op;
  auto l = op.template get_left_input_cooperative_tensor<A, A, C>();
  auto r = op.template get_right_input_cooperative_tensor<A, A, C>();
  auto t = op.template get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(r)>, C>();
  l.load(tensor(a, extents<int, 16, 16>()));
  r.load(tensor(b, extents<int, 32, 16>()));
  if (zero)
    for (ushort i = 0; i < t.get_capacity(); ++i) t[i] = 1;
  op.run(l, r, t);
  t.store(tensor(c, extents<int, 32, 16>()));
}
"""


def _run(arguments, a, b, checked=False, **options):
    kernel = hostmetal.compile(HEADER + KERNEL, "product", template=arguments, checked=checked)
    result = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, np.zeros((16, 32), np.float32)], allow_findings=True, **options)
    return np.asarray(result.outputs[2]), result.findings


def _operands(dtype, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((16, 16)).astype(dtype), generator.standard_normal((16, 32)).astype(dtype)


def test_multiply_overwrites_or_accumulates():
    a, b = _operands(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for accumulates, added in ((False, 0), (True, 1)):
        c, findings = _run("half, float, true, false, true", a, b, multiply_accumulates=accumulates)
        assert np.max(np.abs(c - exact - added)) < 1e-4 and not findings


def test_relaxed_float_operands_keep_eleven_bits():
    a, b = _operands(np.float32)
    kept = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    for relaxed, truncate in ((True, True), (True, False), (False, True)):
        c, _ = _run(f"float, float, {str(relaxed).lower()}, true, true", a, b, truncate_f32=truncate)
        x, y = kept if relaxed and truncate else (a.astype(np.float64), b.astype(np.float64))
        assert np.max(np.abs(c - 1 - x @ y)) < 2e-5
    assert np.max(np.abs(kept[0] @ kept[1] - a.astype(np.float64) @ b)) > 1e-3  # the switch is visible at all


def test_half_subnormals_read_as_zero():
    a, b = np.full((16, 16), 2.0**-20, np.float16), np.full((16, 32), 2.0**10, np.float16)
    for flush, product in ((False, 16 * 2.0**-10), (True, 0)):
        c, _ = _run("half, float, true, true, true", a, b, flush_half=flush)
        assert np.all(c == 1 + product)


@pytest.mark.parametrize("layout", ["nax", "strict", "permuted", "padded"])
def test_an_uninitialised_tile_is_nan_and_in_the_checked_build_a_finding(layout):
    a, b = _operands(np.float16)
    c, findings = _run("half, float, true, true, false", a, b, layout=layout)
    assert np.all(np.isnan(c)) and not findings
    _, findings = _run("half, float, true, true, false", a, b, checked=True, layout=layout)
    assert findings and {f.kind for f in findings} == {"uninitialised"}
    line = 1 + HEADER.count("\n") + KERNEL[: KERNEL.index("op.run(l, r, t)")].count("\n")
    assert {f.line for f in findings} == {line}
    _, findings = _run("half, float, true, true, true", a, b, checked=True, layout=layout)
    assert not findings


FIXED = """
kernel void fixed(device half* a [[buffer(0)]], device half* b [[buffer(1)]], device float* c [[buffer(2)]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, true, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<d, execution_simdgroup> op;
  auto l = op.get_left_input_cooperative_tensor<half, half, float>();
  auto r = op.get_right_input_cooperative_tensor<half, half, float>();
  auto t = op.get_destination_cooperative_tensor<remove_addrspace_t<decltype(l)>, remove_addrspace_t<decltype(r)>, float>();
  const int row = ((lane >> 2) & 4) | ((lane >> 1) & 3), column = (((lane >> 2) & 2) | (lane & 1)) * 4;
  for (int i = 0; i < 8; ++i) l[i] = a[(row + i / 4 * 8) * 16 + column + i % 4];
  for (int i = 0; i < 16; ++i) r[i] = b[(row + i % 8 / 4 * 8) * 32 + column + i % 4 + i / 8 * 16];
  for (int i = 0; i < 16; ++i) t[i] = 0;
  op.run(l, r, t);
  for (int i = 0; i < 16; ++i) c[(row + i % 8 / 4 * 8) * 32 + column + i % 4 + i / 8 * 16] = t[i];
}
"""


def test_a_hard_coded_lane_map_is_right_only_where_it_holds():
    a, b = _operands(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    kernel = hostmetal.compile(HEADER + FIXED, "fixed")
    error = {}
    for layout in ("nax", "strict", "permuted"):
        c = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, np.zeros((16, 32), np.float32)], layout=layout).outputs[2]
        error[layout] = np.max(np.abs(np.asarray(c) - exact))
    assert error["nax"] < 1e-4 and error["strict"] > 0.1 and error["permuted"] > 0.1


PAST = """
kernel void past(device float* c [[buffer(0)]]) {
  matmul2d<matmul2d_descriptor(16, 32, 16), execution_simdgroup> op;
  auto l = op.get_left_input_cooperative_tensor<half, half, float>();
  for (int i = 0; i < 16; ++i) l[i] = i;
  c[0] = l[0];
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_an_index_past_the_capacity_is_a_finding(checked):
    kernel = hostmetal.compile(HEADER + PAST, "past", checked=checked)
    result = kernel.dispatch(grid=1, threadgroup=32, buffers=[np.zeros(1, np.float32)], allow_findings=True)
    assert [f.kind for f in result.findings] == ["capacity"]
    assert result.findings[0].line == 1 + HEADER.count("\n") + PAST[: PAST.index("l[i] = i")].count("\n")


GEOMETRY = """
kernel void geometry(device half* a [[buffer(0)]], device half* b [[buffer(1)]], device float* c [[buffer(2)]], constant int& which [[buffer(3)]],
                     uint lane [[thread_index_in_simdgroup]]) {
  auto A = tensor(a, dextents<int, 2>(which == 1 ? 24 : 32, 16));
  auto B = tensor(b, dextents<int, 2>(32, which == 2 ? 16 : 32));
  auto C = tensor(c, dextents<int, 2>(32, 16));
  auto moved = A.slice(0, which == 3 && lane == 7 ? 1 : 0);
  if (which == 1) matmul2d<matmul2d_descriptor(16, 32, 32), execution_simdgroup>{}.run(A, B, C);
  else matmul2d<matmul2d_descriptor(16, 32), execution_simdgroup>{}.run(moved, B, C);
}
"""


def test_extents_and_uniformity_of_operands_are_checked():
    kernel = hostmetal.compile(HEADER + GEOMETRY, "geometry")
    a, b, c = np.ones((16, 32), np.float16), np.ones((32, 32), np.float16), np.zeros((16, 32), np.float32)
    kinds = {}
    for which in range(4):
        result = kernel.dispatch(grid=1, threadgroup=32, buffers=[a, b, c, np.array([which], np.int32)], allow_findings=True)
        kinds[which] = [f.kind for f in result.findings]
    assert kinds == {0: [], 1: ["extent"], 2: ["argument"], 3: ["argument"]}
