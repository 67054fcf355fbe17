"""Formats of one's own: what is refused and why, and that find() sees what is registered."""

from dataclasses import replace

import numpy as np
import pytest

import mlx_tensorops as mt
from mlx_tensorops import formats
from mlx_tensorops.errors import DTypeError, TensorOpsError
from mlx_tensorops.formats import Format, known

NF2 = Format("nf2", "nf2", 2, 32, "table", "float", values=(-1.0, -0.3, 0.3, 1.0))


@pytest.fixture
def registry(monkeypatch):
    """Registrations of a test end with it."""
    monkeypatch.setattr(known, "_formats", dict(known._formats))
    known._find.cache_clear()
    yield
    monkeypatch.undo()
    known._find.cache_clear()


def test_register_and_find(registry):
    with pytest.raises(DTypeError, match="mode 'nf2' is unknown"):
        formats.find("op", "nf2", None, None)
    with pytest.raises(DTypeError, match="no group_size 64"):
        formats.find("op", "mxfp4", 64, None)
    assert mt.register_format(NF2) is NF2
    assert mt.formats.by_name("nf2") is NF2 and formats.formats()["nf2"] is NF2
    assert formats.find("op", "nf2", None, None) is NF2 and formats.find("op", "nf2", 32, 2) is NF2
    with pytest.raises(DTypeError, match="no group_size 64 with 2 bits.\n.*group_size 32, bits 2"):
        formats.find("op", "nf2", 64, None)
    wide = formats.register_format(replace(NF2, name="nf2_g64", group=64))
    assert formats.find("op", "nf2", 64, None) is wide and formats.find("op", "nf2", None, None) is NF2


def test_registering_the_same_again_does_nothing(registry):
    formats.register_format(NF2)
    assert formats.register_format(replace(NF2)) is NF2


@pytest.mark.parametrize("format,says", [
    (replace(NF2, values=(-1.0, -0.25, 0.25, 1.0)), "name 'nf2' belongs to another.*\n.*name='nf2_2'"),
    (replace(NF2, name="nf2b"), "is format 'nf2'.*\n.*mode='nf2b'"),
    (replace(NF2, name="mine", mode="affine"), "mode 'affine' is MLX's.*\n.*mode='mine'"),
    ("nf2", "is no Format"),
])
def test_collisions(registry, format, says):
    formats.register_format(NF2)
    with pytest.raises(TensorOpsError, match=says):
        formats.register_format(format)
    assert formats.by_name("nf2") is NF2 and "nf2b" not in formats.formats()


def test_registrations_of_these_tests_ended():
    assert set(formats.formats()) == {f.name for f in formats.BUILT_IN}


@pytest.mark.parametrize("change,says", [
    (dict(name="NF 2"), "name 'NF 2'.*\n.*nearest legal: nf2"),
    (dict(mode=""), "mode '' is no word"),
    (dict(bits=7), "bits 7.*\n.*nearest legal: 6"),
    (dict(bits=0), "bits 0.*\n.*nearest legal: 1"),
    (dict(bits=2.0), "bits 2.0.*\n.*nearest legal: 2"),
    (dict(bits="4"), "bits '4'"),
    (dict(group=40), "multiple of 16.*\n.*group=32"),
    (dict(group=20, bits=4, values=(0.5,) * 16), "multiple of 8.*\n.*group=16"),
    (dict(group=48, bits=3, values=(0.5,) * 8), "multiple of 32.*\n.*group=64"),
    (dict(group=0), "group 0.*\n.*group=16"),
    (dict(codes="nf4"), "codes 'nf4' is unknown(.*\n)*.*value of every code"),
    (dict(scale="fp8"), "scale 'fp8' is unknown"),
    (dict(codes="e2m1", values=()), "such a code has 4.*\n.*bits=4"),
    (dict(codes="e4m3", values=()), "such a code has 8.*\n.*bits=8"),
    (dict(scale="e8m0", biased=True), "scale 'e8m0': a bias"),
    (dict(global_scale=True), "448 times 6"),
    (dict(values=(0.0, 1.0, 2.0)), "has 3 entries: one for each of the 4 codes"),
    (dict(codes="unsigned"), "whose values are known"),
    (dict(values=(0.0, 1.0, 2.0, float("nan"))), "holds nan"),
    (dict(values=(0.0, 1.0, 2.0, float("inf"))), "holds inf"),
    (dict(values=(0.0, 1.0, 2.0, 1e39)), r"holds 1e\+39"),
    (dict(values=(0.0, 1.0, 2.0, "x")), "holds 'x'"),
    (dict(values=(0.0, 0.0, 0.0, 1e-60)), "all zero"),
])
def test_a_format_that_contradicts_itself(change, says):
    with pytest.raises(TensorOpsError, match=says):
        replace(NF2, **change)


def test_table_values_are_float32():
    assert NF2.values == tuple(float(np.float32(v)) for v in (-1.0, -0.3, 0.3, 1.0))


def test_a_registered_format_packs_and_decodes(registry):
    formats.register_format(NF2)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    w, scales, biases = formats.quantise(x, formats.find("op", "nf2", None, None))
    assert biases is None and w.shape == (4, 4)
    got = formats.dequantise(w, scales, None, NF2)
    choices = np.float32(NF2.values).astype(float) * np.abs(x.reshape(4, 2, 32)).max(-1).repeat(32, -1).reshape(4, 64, 1).astype(float)
    assert np.array_equal(np.abs(got - x), np.abs(choices - x[..., None]).min(-1))


def test_no_tier_is_built_and_each_format_knows_its_own():
    """SDK and language versions of the element types; NVFP4's scales have no plane in any SDK."""
    named = {name: [(t.operand, t.plane, t.sdk, t.metal) for t in formats.tiers(formats.by_name(name))] for name in formats.formats()}
    fp4, fp8, plane = "metal_fp4_e2m1_format", "metal_fp8_e4m3_format", "metal_fp8_ue8m0_format"
    assert named["affine4_g64"] == [("uint4b_format", "", "26.4", "4.0")]
    assert named["affine8_g32"] == [("uchar", "", "26.4", "4.0")]
    assert named["affine2_g128"] == [("uint2b_format", "", "27.0", "4.1")]
    assert named["mxfp4"] == [(fp4, "", "27.0", "4.1"), (fp4, plane, "27.0", "4.1")]
    assert named["mxfp8"] == [(fp8, "", "27.0", "4.1"), (fp8, plane, "27.0", "4.1")]
    assert named["nvfp4"] == [(fp4, "", "27.0", "4.1")]
    assert all(named[f"affine{bits}_g64"] == [] for bits in (1, 3, 5, 6))
    assert not any(t.built for f in formats.formats().values() for t in formats.tiers(f))


def test_numpy_is_not_imported_with_the_package():
    import subprocess
    import sys

    code = "import sys, mlx_tensorops.formats as f; f.find('op', 'nvfp4', None, None); assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
