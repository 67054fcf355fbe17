// The last step of a ragged K: elements past K are zero in both operands, so that no NaN can leak in.
template <int K_COORDINATE, typename CT, typename T, typename Offset>
inline void fill_tail(thread CT& ct, const device T* origin, thread const Offset* at, int k_left) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    const auto index = ct.get_multidimensional_index(i);
    const bool inside = ct.is_valid_element(i) && int(index[K_COORDINATE]) < k_left;
    T value = T(0.0f);
    if (inside) value = origin[at[i]];
    ct[i] = value;
  }
}
