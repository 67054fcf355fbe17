"""Lint complains about what Metal does not have, where it is, and leaves MLX's and our own kernels alone."""

import pytest

from mlx_tensorops import hostmetal
from mlx_tensorops.hostmetal.lint import token_complaints
from mlx_tensorops.hostmetal.tokens import tokenize

from .planted_cases import CASES
from .test_mlx_names import wheel  # noqa: F401 (a fixture)

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def _rules(text, **options):
    return [(c.line, c.rule) for c in token_complaints(text, tokenize(text), **options)]


@pytest.mark.parametrize("text, rule", [
    ("float f(float* p) { return *p; }", "address space"),
    ("float f(const float& x) { return x; }", "address space"),
    ("void f() { half4 const* q; }", "address space"),
    ("float g = 2.0f;", "program scope"),
    ("namespace a { uint n; }", "program scope"),
    ("static constexpr int q = 3;", "program scope"),
    ("thread float bad;", "program scope"),
    ("void h() { threadgroup float s[4]; s[0] = 1; }", "threadgroup"),
    ("kernel void k() { threadgroup float s[4] = {0}; }", "threadgroup"),
    ("kernel void k() { threadgroup float s{}; }", "threadgroup"),
    ("struct V { V() {} }; kernel void k() { threadgroup V v; }", "threadgroup"),
    ("kernel int k() { return 1; }", "kernel"),
    ("[[kernel]] float k() { return 1; }", "kernel"),
    ("long long x() { return 0; }", "type"),
    ("int main() { return 0; }", "name"),
    ("void f() { goto e; e:; }", "keyword"),
    ("double f();", "keyword"),
    ("int f() { return std::min(1, 2); }", "keyword"),
    ("void f() { int* p = new int; }", "keyword"),
])  # fmt: skip
def test_complains(text, rule):
    assert (3, rule) in _rules(HEAD + text)
    with pytest.raises(hostmetal.CompileError, match=f"line 3: {rule}"):
        hostmetal.compile(HEAD + text + "\nkernel void other() {}", "other")


@pytest.mark.parametrize("text", [
    "constant constexpr int A = 1, B = 2; constant float t[2] = {1, 2};",
    "struct S { static constant constexpr const int W = 2; float v[2]; thread float& at(int i) thread { return v[i]; } };",
    "void f(device float const* p, thread const float& y, threadgroup half4* z);",
    "template <class T> T g(T* p) { return *p; } int h(int a, int b) { return a * b; }",
    "int z(thread int& a) { int q = sizeof(float) * a; for (int i = 0; i < 3; ++i) {} return q; } enum E { X = 1, Y };",
    "struct C { C() thread {} C() threadgroup {} }; kernel void k() { threadgroup C c; }",
    "struct N { N(const thread N&) = delete; int std; };",
    "typedef half A; half4 v(half4 x) { return x * x; } using F = float;",
    "kernel void k(threadgroup float* s [[threadgroup(0)]]) { threadgroup float* p = s; threadgroup const float& q = s[1]; }",
])  # fmt: skip
def test_accepts(text):
    assert _rules(HEAD + text) == []


def test_unqualified_pointers_are_generic_from_41():
    text = "float f(float* p) { return *p; }"
    assert _rules(text, dialect="4.1") == [] and _rules(text, dialect="4.0")


def test_the_syntax_tree_finds_what_tokens_cannot():
    text = HEAD + "struct S { float x; };\ntypedef S T;\nfloat f(T* p) { return p->x; }\nT shared_by_all;\nstruct Q { static constexpr int n = 1; };\n"
    assert _rules(text) == []
    found = [(c.line, c.rule) for c in hostmetal.lint(text)]
    assert set(found) == {(5, "address space"), (6, "program scope"), (7, "program scope")}


def test_planted_kernels_are_legal_metal():
    for case in CASES:
        assert token_complaints(case.source, tokenize(case.source)) == []
    assert hostmetal.lint(next(c for c in CASES if c.name == "staged").source) == ()


def test_mlx_is_legal_metal(wheel):  # noqa: F811
    for path in (wheel / "include" / "mlx" / "backend" / "metal" / "kernels").rglob("*.h"):
        text = path.read_text()
        assert token_complaints(text, tokenize(text)) == [], path
