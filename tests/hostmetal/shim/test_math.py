"""<metal_math>, <metal_integer> and the relational functions against NumPy's float64 and exact integers."""

import numpy as np

from .support import run

STDLIB = "#include <metal_stdlib>\nusing namespace metal;\n"

# name -> reference, input range
ONE = {
    "acos": (np.arccos, -1, 1), "acosh": (np.arccosh, 1, 50), "asin": (np.arcsin, -1, 1), "asinh": (np.arcsinh, -9, 9),
    "atan": (np.arctan, -9, 9), "atanh": (np.arctanh, -0.95, 0.95), "ceil": (np.ceil, -9, 9), "cos": (np.cos, -9, 9),
    "cosh": (np.cosh, -9, 9), "cospi": (lambda x: np.cos(np.pi * x), -9, 9), "exp": (np.exp, -9, 9), "exp10": (lambda x: 10.0**x, -4, 4),
    "exp2": (np.exp2, -9, 9), "fabs": (np.abs, -9, 9), "floor": (np.floor, -9, 9), "fract": (lambda x: x - np.floor(x), -9, 9),
    "log": (np.log, 0.1, 99), "log10": (np.log10, 0.1, 99), "log2": (np.log2, 0.1, 99), "rint": (np.rint, -9, 9),
    "round": (lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), -9, 9), "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 99),
    "sin": (np.sin, -9, 9), "sinh": (np.sinh, -9, 9), "sinpi": (lambda x: np.sin(np.pi * x), -9, 9), "sqrt": (np.sqrt, 0, 99),
    "tan": (np.tan, -1.5, 1.5), "tanh": (np.tanh, -9, 9), "trunc": (np.trunc, -9, 9), "sign": (np.sign, -2, 2),
    "saturate": (lambda x: np.clip(x, 0, 1), -2, 2), "abs": (np.abs, -9, 9),
}  # fmt: skip
TWO = {
    "atan2": np.arctan2, "copysign": np.copysign, "divide": np.divide, "fdim": lambda x, y: np.maximum(x - y, 0), "fmax": np.fmax,
    "fmin": np.fmin, "fmod": np.fmod, "max": np.fmax, "min": np.fmin, "pow": lambda x, y: np.abs(x) ** y, "step": lambda x, y: (y >= x) * 1.0,
}  # fmt: skip
THREE = {
    "fma": lambda x, y, z: x * y + z, "mix": lambda x, y, z: x + (y - x) * z, "clamp": lambda x, y, z: np.minimum(np.maximum(x, y), z),
    "max3": lambda x, y, z: np.fmax(np.fmax(x, y), z), "min3": lambda x, y, z: np.fmin(np.fmin(x, y), z),
    "median3": lambda x, y, z: np.median([x, y, z], axis=0),
}  # fmt: skip
COUNT = 64


def _source(element, namespace):
    """One kernel that applies every function to scalars, and to 4-vectors in buffer 2."""
    body = []
    for k, name in enumerate(ONE):
        body.append(f"o[{k} * {COUNT} + i] = {namespace}{name}(x[{k} * {COUNT} + i]);")
        body.append(f"if (i % 4 == 0) ((device {element}4*)(v + {k} * {COUNT}))[i / 4] = {namespace}{name}(((device {element}4*)(x + {k} * {COUNT}))[i / 4]);")
    base = len(ONE)
    for k, name in enumerate(TWO):
        first = f"fabs(a[i])" if name == "pow" else "a[i]"
        scope = "" if name in ("max", "min") else namespace
        body.append(f"o[{base + k} * {COUNT} + i] = {scope}{name}({first}, b[i]);")
        vector = first.replace("a[i]", f"((device {element}4*)a)[i / 4]")
        body.append(f"if (i % 4 == 0) ((device {element}4*)(v + {base + k} * {COUNT}))[i / 4] = {scope}{name}({vector}, ((device {element}4*)b)[i / 4]);")
    base += len(TWO)
    for k, name in enumerate(THREE):
        body.append(f"o[{base + k} * {COUNT} + i] = {name}(a[i], b[i], c[i]);")
    return f"""kernel void k(device {element}* x [[buffer(0)]], device {element}* o [[buffer(1)]], device {element}* v [[buffer(2)]],
        device {element}* a [[buffer(3)]], device {element}* b [[buffer(4)]], device {element}* c [[buffer(5)]], uint i [[thread_position_in_grid]]) {{
        {chr(10).join(body)} }}"""


def _check(element, dtype, namespace, ulp):
    generator = np.random.default_rng(5)
    total = len(ONE) + len(TWO) + len(THREE)
    x = np.stack([generator.uniform(low, high, COUNT) for _, low, high in ONE.values()]).astype(dtype)
    a, b, c = (generator.uniform(-3, 3, COUNT).astype(dtype) for _ in range(3))
    out = run(_source(element, namespace), [x, np.zeros((total, COUNT), dtype), np.zeros((total, COUNT), dtype), a, b, c], header=STDLIB, threadgroup=COUNT)
    scalars, vectors = (np.asarray(out[k]).astype(np.float64) for k in (1, 2))
    a, b, c = (t.astype(np.float64) for t in (a, b, c))
    exact = [f(x[k].astype(np.float64)) for k, (f, _, _) in enumerate(ONE.values())] + [f(a, b) for f in TWO.values()] + [f(a, b, c) for f in THREE.values()]
    names = [*ONE, *TWO, *THREE]
    for k, name in enumerate(names):
        bound = ulp * np.finfo(dtype).eps * np.maximum(np.abs(exact[k]), 1e-2 if dtype == np.float16 else 1e-6 if name in ("mix", "fma", "sinpi", "cospi", "fmod") else 1e-30)
        worst = np.max(np.abs(scalars[k] - exact[k]) - bound)
        assert worst <= 0, f"{namespace}{name}({element}): {worst} above its bound"
        if name not in THREE:
            assert np.array_equal(scalars[k], vectors[k]), f"{name}: vector and scalar differ"


def test_float_functions():
    _check("float", np.float32, "", 8)


def test_float_functions_in_precise_and_fast():
    _check("float", np.float32, "precise::", 8)
    _check("float", np.float32, "fast::", 8)


def test_half_functions_round_once():
    _check("half", np.float16, "", 1)


SPECIAL = """
kernel void k(device float* o [[buffer(0)]], device int* n [[buffer(1)]]) {
  int e; float whole, cosine;
  o[0] = frexp(48.0f, e); n[0] = e; o[1] = modf(-2.75f, whole); o[2] = whole; o[3] = sincos(1.0f, cosine); o[4] = cosine;
  o[5] = ldexp(1.5f, -3); o[6] = nextafter(1.0f, 2.0f); o[7] = max(NAN, 3.0f); o[8] = min(2.0f, NAN); o[9] = smoothstep(0.0f, 2.0f, 0.5f);
  n[1] = isnan(NAN); n[2] = isinf(-INFINITY); n[3] = isfinite(1e38f); n[4] = isnormal(1e-40f); n[5] = signbit(-0.0f); n[6] = all(isnan(float2(NAN, 1)));
  o[10] = numeric_limits<float>::max(); o[11] = numeric_limits<half>::lowest(); o[12] = numeric_limits<bfloat>::epsilon();
  n[7] = numeric_limits<short>::min(); n[8] = max(3, -4); n[9] = clamp(9u, 1u, 5u); n[10] = abs(-7); n[11] = select(1, 2, true);
  o[13] = select(float2(1, 2), float2(3, 4), bool2(false, true)).y; o[14] = fract(-0.25f); o[15] = 1.0bf + 2.0h * 0;
}
"""


def test_special_values():
    source = SPECIAL.replace("1.0bf + 2.0h * 0", "float(1.0bf) + 2.0h")
    out = run(source, [np.zeros(16, np.float32), np.zeros(12, np.int32)], header=STDLIB, threadgroup=1)
    expected = [0.75, -0.75, -2, np.sin(1), np.cos(1), 0.1875, 1 + 2.0**-23, 3, 2, 0.15625, np.finfo(np.float32).max, -65504, 2.0**-7, 4, 0.75, 3]
    assert np.allclose(out[0], expected, rtol=2e-7, atol=0)
    assert list(out[1]) == [6, 1, 1, 1, 0, 1, 0, -32768, 3, 5, 7, 2]


INTEGERS = """
template <typename T, typename U> void all_of(device T* x, device T* y, device T* o, uint i) {
  T a = x[i], b = y[i];
  int k = 0;
  o[32 * i + k++] = popcount(a); o[32 * i + k++] = clz(a); o[32 * i + k++] = ctz(a); o[32 * i + k++] = reverse_bits(a);
  o[32 * i + k++] = rotate(a, T(5)); o[32 * i + k++] = extract_bits(a, 3, 4); o[32 * i + k++] = insert_bits(a, b, 2, 5);
  o[32 * i + k++] = addsat(a, b); o[32 * i + k++] = subsat(a, b); o[32 * i + k++] = T(absdiff(a, b)); o[32 * i + k++] = hadd(a, b);
  o[32 * i + k++] = rhadd(a, b); o[32 * i + k++] = mulhi(a, b); o[32 * i + k++] = madhi(a, b, T(3)); o[32 * i + k++] = madsat(a, b, a);
  o[32 * i + k++] = popcount(vec<T, 2>(a, b)).y; o[32 * i + k++] = addsat(vec<T, 2>(b, a), vec<T, 2>(a, b)).x;
}
kernel void k(device T* x [[buffer(0)]], device T* y [[buffer(1)]], device T* o [[buffer(2)]], uint i [[thread_position_in_grid]]) { all_of<T, T>(x, y, o, i); }
"""


def _integers(a, b, bits, signed):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    mask = (1 << bits) - 1
    u, v = a & mask, b & mask

    def wrap(n):
        n &= mask
        return n - (1 << bits) if signed and n > high else n

    def clip(n):
        return min(max(n, low), high)

    text = format(u, f"0{bits}b")
    field = u >> 3 & 15
    values = [bin(u).count("1"), bits - u.bit_length(), bits if u == 0 else (u & -u).bit_length() - 1, int(text[::-1], 2),
              u << 5 | u >> bits - 5, field - 16 if signed and field > 7 else field, u & ~(31 << 2) | (v << 2) & (31 << 2),
              clip(a + b), clip(a - b), abs(a - b), (a + b) >> 1, (a + b + 1) >> 1, a * b >> bits, (a * b >> bits) + 3, clip(a * b + a),
              bin(v).count("1"), clip(a + b)]  # fmt: skip
    return [wrap(n) for n in values]


def test_integer_functions():
    generator = np.random.default_rng(6)
    for name, dtype in {"char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64}.items():
        info = np.iinfo(dtype)
        x, y = (generator.integers(info.min, info.max, 32, dtype=dtype, endpoint=True) for _ in range(2))
        x[:4], y[:4] = [0, info.max, info.min, 1], [0, info.max, info.max, info.min]
        out = run(f"using T = {name};" + INTEGERS, [x, y, np.zeros((32, 32), dtype)], kernel="k", header=STDLIB, threadgroup=32)
        expected = [_integers(int(a), int(b), info.bits, info.min < 0) for a, b in zip(x, y)]
        assert np.array_equal(np.asarray(out[2])[:, : len(expected[0])], np.array(expected, dtype=object).astype(dtype)), name
