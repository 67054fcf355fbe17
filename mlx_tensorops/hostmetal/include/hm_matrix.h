// matrix<T, Columns, Rows>: float4x4, half2x3 and so on. Column-major: m[c] is a column vector, m[c][r] an element.
#pragma once
#include "hm_common.h"
#pragma clang system_header

namespace metal {

template <class T, int Columns, int Rows = Columns>
struct matrix {
  using column_type = vec<T, Rows>;
  column_type columns[Columns];

  matrix() = default;
  HM_FUNC explicit matrix(T diagonal) {
    for (int c = 0; c < Columns; ++c) {
      columns[c] = column_type(static_cast<T>(0));
      if (c < Rows) columns[c].d[c] = diagonal;
    }
  }
  template <class... V, enable_if_t<sizeof...(V) == Columns && (__hm::same<V, column_type>::value && ...), int> = 0>
  HM_FUNC constexpr matrix(V... v) : columns{v...} {}
  template <class... S, enable_if_t<sizeof...(S) == Columns * Rows && (Columns * Rows > 1) && (is_arithmetic_v<S> && ...), int> = 0>
  HM_FUNC matrix(S... s) {
    const T values[] = {static_cast<T>(s)...};
    for (int i = 0; i < Columns * Rows; ++i) columns[i / Rows].d[i % Rows] = values[i];
  }
  template <class U, enable_if_t<!__hm::same<U, T>::value, int> = 0>
  HM_FUNC explicit matrix(const matrix<U, Columns, Rows>& m) {
    for (int c = 0; c < Columns; ++c) columns[c] = column_type(m.columns[c]);
  }
  template <class M, enable_if_t<__hm::same<M, matrix>::value, int> = 0>
  HM_FUNC matrix(const constant M& m) {
    for (int c = 0; c < Columns; ++c) columns[c] = m.columns[c];
  }
  HM_FUNC column_type& operator[](int c) { return columns[c]; }
  HM_FUNC const column_type& operator[](int c) const { return columns[c]; }
  HM_FUNC thread column_type& operator[](int c) thread { return columns[c]; }
  HM_FUNC const thread column_type& operator[](int c) const thread { return columns[c]; }
  HM_FUNC device column_type& operator[](int c) device { return columns[c]; }
  HM_FUNC const device column_type& operator[](int c) const device { return columns[c]; }
  HM_FUNC threadgroup column_type& operator[](int c) threadgroup { return columns[c]; }
  HM_FUNC const threadgroup column_type& operator[](int c) const threadgroup { return columns[c]; }
  HM_FUNC const constant column_type& operator[](int c) const constant { return columns[c]; }
};

template <class T, int C, int R> HM_FUNC matrix<T, C, R> operator+(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; ++c) a.columns[c] += b.columns[c];
  return a;
}
template <class T, int C, int R> HM_FUNC matrix<T, C, R> operator-(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; ++c) a.columns[c] -= b.columns[c];
  return a;
}
template <class T, int C, int R, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>
HM_FUNC matrix<T, C, R> operator*(matrix<T, C, R> a, S s) {
  for (int c = 0; c < C; ++c) a.columns[c] *= s;
  return a;
}
template <class T, int C, int R, class S, enable_if_t<is_arithmetic_v<S>, int> = 0>
HM_FUNC matrix<T, C, R> operator*(S s, matrix<T, C, R> a) { return a * s; }
template <class T, int C, int R> HM_FUNC vec<T, R> operator*(matrix<T, C, R> m, vec<T, C> v) {
  vec<T, R> r = m.columns[0] * v.d[0];
  for (int c = 1; c < C; ++c) r += m.columns[c] * v.d[c];
  return r;
}
template <class T, int C, int R> HM_FUNC vec<T, C> operator*(vec<T, R> v, matrix<T, C, R> m) {
  vec<T, C> r(static_cast<T>(0));
  for (int c = 0; c < C; ++c) r.d[c] = dot(v, m.columns[c]);
  return r;
}
template <class T, int K, int R, int C> HM_FUNC matrix<T, C, R> operator*(matrix<T, K, R> a, matrix<T, C, K> b) {
  matrix<T, C, R> r;
  for (int c = 0; c < C; ++c) r.columns[c] = a * b.columns[c];
  return r;
}
template <class T, int C, int R> HM_FUNC matrix<T, R, C> transpose(matrix<T, C, R> m) {
  matrix<T, R, C> t;
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r) t.columns[r].d[c] = m.columns[c].d[r];
  return t;
}
template <class T> HM_FUNC T determinant(matrix<T, 2, 2> m) {
  return m.columns[0].x * m.columns[1].y - m.columns[1].x * m.columns[0].y;
}
template <class T> HM_FUNC T determinant(matrix<T, 3, 3> m) {
  return dot(m.columns[0], cross(m.columns[1], m.columns[2]));
}
template <class T> HM_FUNC T determinant(matrix<T, 4, 4> m) {
  T sum = 0;
  for (int k = 0; k < 4; ++k) {  // along the first row
    matrix<T, 3, 3> minor;
    for (int c = 0, to = 0; c < 4; ++c)
      if (c != k) minor.columns[to++] = m.columns[c].yzw;
    sum += (k % 2 ? -1 : 1) * m.columns[k].x * determinant(minor);
  }
  return sum;
}

#define HM_MATRIX_NAMES(T)                                                                          \
  typedef matrix<T, 2, 2> T##2x2; typedef matrix<T, 2, 3> T##2x3; typedef matrix<T, 2, 4> T##2x4;   \
  typedef matrix<T, 3, 2> T##3x2; typedef matrix<T, 3, 3> T##3x3; typedef matrix<T, 3, 4> T##3x4;   \
  typedef matrix<T, 4, 2> T##4x2; typedef matrix<T, 4, 3> T##4x3; typedef matrix<T, 4, 4> T##4x4;
HM_MATRIX_NAMES(float)
HM_MATRIX_NAMES(half)
HM_MATRIX_NAMES(bfloat)
#undef HM_MATRIX_NAMES

}  // namespace metal

#define HM_GLOBAL_MATRIX(T)                                         \
  using metal::T##2x2; using metal::T##2x3; using metal::T##2x4;    \
  using metal::T##3x2; using metal::T##3x3; using metal::T##3x4;    \
  using metal::T##4x2; using metal::T##4x3; using metal::T##4x4;
HM_GLOBAL_MATRIX(float)
HM_GLOBAL_MATRIX(half)
HM_GLOBAL_MATRIX(bfloat)
#undef HM_GLOBAL_MATRIX
