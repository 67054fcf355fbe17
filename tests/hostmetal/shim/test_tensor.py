"""tensor: extents, strides, slices, checked and unchecked access, in every address space that an inline view may have."""

import numpy as np
import pytest

from mlx_tensorops import hostmetal

from .support import HEADER

VIEWS = """
kernel void views(device float* a [[buffer(0)]], device float* o [[buffer(1)]], constant float* c [[buffer(2)]]) {
  int i = 0;
  auto t = tensor(a, dextents<int, 2>(6, 4));                                       // 4 rows of 6
  auto s = tensor(a, dextents<int, 2>(3, 4), array<int, 2>({1, 6}));                // the left half
  auto r = t.slice(2, 1);
  auto w = t.slice<2, 2>(3, 1);
  auto m = t.slice<static_cast<int>(dynamic_extent), 2>(4, 2);
  o[i++] = t.get_extent(0); o[i++] = t.get_stride(1); o[i++] = s.get_stride(1); o[i++] = r.get_extent(0); o[i++] = r.get_extent(1);
  o[i++] = decltype(w)::get_static_extent(0); o[i++] = m.get_extent(0); o[i++] = m.get_extent(1); o[i++] = decltype(m)::has_static_extent(0);
  o[i++] = t.get(5, 3); o[i++] = t.get(6, 3); o[i++] = t.get(-1, 0); o[i++] = s.get(2, 3); o[i++] = s.get(3, 3); o[i++] = r.get(0, 0); o[i++] = w.get(1, 1);
  o[i++] = w.get(2, 1); o[i++] = m.get(1, 1); o[i++] = t[array<int, 2>{2, 3}]; o[i++] = decltype(t)::get_rank();
  auto row = tensor(a, dextents<int, 2>(6, 1));
  o[i++] = row.get(4, 99);                                                         // a dimension of size 1 repeats
  row.set(-7.0f, 4, 99);                                                           // but is not written beyond itself
  t.set(100.0f, 0, 3); t.set(100.0f, 0, 4); t.set(100.0f, 6, 0);
  auto cube = tensor(a, dextents<int, 3>(2, 3, 4)); o[i++] = cube.get(1, 2, 3); o[i++] = cube.slice(0, 1, 2).get(1, 1, 1);
  auto line = tensor(a + 6, dextents<int, 1>(6)); o[i++] = line[2] + line.get(3) + line.get(6);
  auto k = tensor(c, extents<int, 2, 2>()); o[i++] = k.get(1, 1);
  float own[4] = {1, 2, 3, 4}; auto p = tensor((thread float*)own, extents<int, 2, 2>()); p.set(9.0f, 1, 0); o[i++] = own[1];
  threadgroup float shared[4]; auto g = tensor(shared, extents<int, 2, 2>()); g.set(8.0f, 0, 1); o[i++] = shared[2];
  static_assert(is_tensor_inline_v<decltype(t)> && !is_tensor_handle_v<decltype(t)> && !has_tensor_offset_v<decltype(r)>);
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_views(checked):
    a = np.arange(24, dtype=np.float32)
    kernel = hostmetal.compile(HEADER + VIEWS, checked=checked)
    out = kernel.dispatch(grid=1, threadgroup=1, buffers=[a, np.zeros(27, np.float32), np.array([1, 2, 3, 4], np.float32)]).outputs
    t = a.reshape(4, 6)
    cube = a.reshape(4, 3, 2)
    expected = [6, 6, 6, 4, 3, 2, 2, 2, 0, t[3, 5], 0, 0, t[3, 2], 0, t[1, 2], t[2, 4], 0, t[3, 5], t[3, 2], 2, t[0, 4],
                cube[3, 2, 1], cube[3, 2, 1], t[1, 2] + t[1, 3], 4, 9, 8]  # fmt: skip
    after = a.copy()
    after[18] = 100
    assert np.array_equal(out[1], expected)
    assert np.array_equal(out[0], after)


FAR = """
kernel void far(device half* a [[buffer(0)]], device float* o [[buffer(1)]], constant int& row [[buffer(2)]]) {
  auto t = tensor(a, dextents<int, 2>(8, 1 << 30), array<long, 2>({1, 1 << 20}));
  auto s = t.slice(0, row);
  o[0] = s.get_extent(1);
}
"""


def test_a_slice_offset_beyond_32_bits_is_a_finding():
    kernel = hostmetal.compile(HEADER + FAR)
    for row, kinds in ((1023, []), (1024, ["extent"])):
        result = kernel.dispatch(grid=1, threadgroup=1, buffers=[np.zeros(8, np.float16), np.zeros(1, np.float32), np.array([row], np.int32)], allow_findings=True)
        assert [f.kind for f in result.findings] == kinds
