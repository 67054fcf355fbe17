// Part of kernels_body.h: bias, activation, residual and the one rounding. Included there, inside the anonymous namespace of kernels_<isa>.cpp.

// exp to about 1 ulp: 2^n times a Taylor polynomial on [-ln2/2, ln2/2], whose rest is below 1e-8.
static inline V exp(V x) {
  x = min(broadcast(88.0f), max(broadcast(-87.0f), x));
  V n = round(mul(x, broadcast(1.44269504f)));
  V r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  V p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return mul(p, exp2_integral(n));
}

static inline V sigmoid(V x) {
  return div(broadcast(1.0f), add(broadcast(1.0f), exp(sub(zero(), x))));
}

// x sigmoid(u) where sigmoid ends near 1e-38, not at 0: the product with -inf must not be -inf, and what is left far
// out, 1e-36, must not come back when a gated unit multiplies it by 1e38. NaN stays NaN.
static inline V bounded(V x) { return max(broadcast(-200.0f), x); }
static inline V fade(V u) { return max(zero(), min(broadcast(1.0f), add(u, broadcast(89.0f)))); }  // 1 down to -88, 0 from -89
static inline V times_sigmoid(V x, V u) { return mul(mul(bounded(x), sigmoid(u)), fade(u)); }

// Complementary error function of z >= 0 as t exp(p(t) - z^2), t = 1 / (1 + z/2). p is a minimax fit
// of degree 9 on z <= 13 (error 6e-8, 3e-7 in f32); being relative, it keeps gelu's left tail accurate.
static inline V erfc_positive(V z) {
  V t = div(broadcast(1.0f), fma(broadcast(0.5f), z, broadcast(1.0f)));
  constexpr float fit[] = {0.15790145f,   -0.751439193f,  1.32275928f,  -0.916890798f, 0.101755387f,
                           -0.0950703515f, 0.06717664f,   0.379883431f, 0.999409813f,  -1.2654856f};
  V p = broadcast(fit[0]);
  for (int i = 1; i < 10; i++) p = fma(p, t, broadcast(fit[i]));
  V e = fma(sub(zero(), z), z, p);
  return mul(mul(t, exp(e)), fade(e));
}

static inline V activate(Activation activation, V x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return max(zero(), x);
    case Activation::silu: return times_sigmoid(x, x);
    case Activation::gelu_tanh: {
      // 0.5 (1 + tanh u) = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
      V u = mul(x, fma(mul(x, x), broadcast(0.0713548163f), broadcast(1.59576912f)));
      return times_sigmoid(x, u);
    }
    case Activation::gelu_erf: {
      V tail = mul(broadcast(0.5f), erfc_positive(mul(abs(x), broadcast(0.707106781f))));
      return mul(bounded(x), select_negative(x, tail, sub(broadcast(1.0f), tail)));
    }
  }
  return x;
}

static inline V finish1(const FinishRow& row, const float* acc, const float* bias,
                        const float* residual) {
  V x = load(acc);
  if (bias) x = add(x, load(bias));
  x = activate(row.activation, x);
  return residual ? add(x, load(residual)) : x;
}

static void finish(const FinishRow& row, int64_t columns) {
  int64_t c = 0;
  auto at = [](const float* p, int64_t i) { return p ? p + i : p; };
  for (; c + kLanes <= columns; c += kLanes) {
    V x = finish1(row, row.acc + c, at(row.bias, c), at(row.residual, c));
    if (row.type == Type::f32) store((float*)row.out + c, x);
    else if (row.type == Type::f16) store_f16((uint16_t*)row.out + c, x);
    else store_bf16((uint16_t*)row.out + c, x);
  }
  if (c == columns) return;
  float acc[kStep], bias[kStep], residual[kStep], f32[kLanes];
  uint16_t half[kLanes];
  copy_padded(row.acc + c, columns - c, acc);
  if (row.bias) copy_padded(row.bias + c, columns - c, bias);
  if (row.residual) copy_padded(row.residual + c, columns - c, residual);
  V x = finish1(row, acc, row.bias ? bias : nullptr, row.residual ? residual : nullptr);
  if (row.type == Type::f32) store(f32, x);
  else if (row.type == Type::f16) store_f16(half, x);
  else store_bf16(half, x);
  for (int64_t i = 0; c < columns; i++, c++) {
    if (row.type == Type::f32) ((float*)row.out)[c] = f32[i];
    else ((uint16_t*)row.out)[c] = half[i];
  }
}
