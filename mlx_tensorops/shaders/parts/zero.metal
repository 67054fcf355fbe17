template <typename CT>
inline void zero(thread CT& ct) {
#pragma clang loop unroll(full)
  for (ushort i = 0; i < ct.get_capacity(); ++i) {
    ct[i] = 0.0f;
  }
}
