"""Legality with reasons, policy order, device profiles: no GPU, no kernel."""

import pytest

from mlx_tensorops import config, device, policy, registry, resolve, select
from mlx_tensorops.device import DeviceProfile, parse_architecture
from mlx_tensorops.errors import EngineError, TensorOpsError
from mlx_tensorops.select import Context, Verdict
from mlx_tensorops.epilogues import Epilogue
from mlx_tensorops.spec import GemmSpec, WeightedSpec, WeightSpec

HALF = GemmSpec("float16", "float16", "float16")
NATIVE = Verdict(True, "built")


def verdict(profile: str, engine: str, spec=HALF, emulated=False, native=NATIVE):
    return select.check(registry.family("gemm"), spec, engine, Context(device.profile(profile), emulated, native))


@pytest.mark.parametrize("name, generation, letter", [
    ("applegpu_g17g", 17, "g"), ("applegpu_g18p", 18, "p"), ("x86_64", 0, ""), ("applegpu_virtual", 0, ""), ("applegpu_g9p", 9, "p"),
])
def test_architecture_names(name, generation, letter):
    assert parse_architecture(name) == (generation, letter)


# The boundary of the rule: generation 17, or 18 for phones.
@pytest.mark.parametrize("architecture, has", [
    ("applegpu_g16s", False), ("applegpu_g17g", True), ("applegpu_g17s", True), ("applegpu_g17p", False), ("applegpu_g18p", True),
])
def test_neural_accelerators_by_generation(architecture, has):
    assert DeviceProfile("x", "metal", architecture, (26, 2)).neural_accelerators is has


@pytest.mark.parametrize("os_version, dialect", [((14, 0), "3.1"), ((15, 0), "3.2"), ((26, 0), "4.0"), ((27, 0), "4.1")])
def test_dialect_by_os(os_version, dialect):
    assert DeviceProfile("x", "metal", "applegpu_g17g", os_version).dialect == dialect


@pytest.mark.parametrize("profile, reason", [
    ("m5", "legal"), ("m5-max", "legal"), ("m5-os27", "legal"), ("a19", "legal"),
    ("m5-os26.0", "macOS 26.0 has no input cooperative tensors; they need 26.2"),
    ("m4", "GPU generation 16 has no neural accelerators"), ("a18-pro", "GPU generation 17 has no neural accelerators"),
    ("virtual-gpu", "a virtual GPU has no cooperative tensors"), ("linux-cpu", "runs on cpu, not on Metal"), ("cuda", "runs on cuda, not on Metal"),
])
def test_mpp_by_device(profile, reason):
    found = verdict(profile, "mpp")
    assert reason in found.reason and found.ok is (reason == "legal")


def test_emulation_makes_mpp_legal_anywhere():
    assert verdict("linux-cpu", "mpp", emulated=True).ok


@pytest.mark.parametrize("spec, reason", [
    (GemmSpec("complex64", "float32", "complex64"), "a is complex64"),
    (GemmSpec("float16", "float16", "float16", 6, 2), "4 batch axes; this kernel takes 3"),
    (GemmSpec("float16", "float16", "float16", epilogue=Epilogue(bias=True), extras=("int32",)), "bias is int32"),
])
def test_mpp_by_spec(spec, reason):
    found = verdict("m5", "mpp", spec)
    assert not found.ok and reason in found.reason


def test_mixed_types_and_epilogues_are_legal_where_matmul2d_has_a_row():
    assert verdict("m5", "mpp", GemmSpec("float16", "bfloat16", "float32")).ok
    assert verdict("m5", "mpp", GemmSpec("float16", "float32", "bfloat16", 3, 2, epilogue=Epilogue(activation="silu"))).ok


def test_cpu_serves_cpu_streams_only():
    assert verdict("linux-cpu", "cpu").ok
    assert "CPU streams only" in verdict("m5", "cpu").reason
    assert "rebuild" in verdict("linux-cpu", "cpu", native=Verdict(False, "rebuild")).reason


def test_cuda_gets_mlx_and_never_throws():
    decision = resolve.resolve("gemm", HALF, "auto", Context(device.profile("cuda"), False, NATIVE))
    assert decision.engine == "mlx"


def test_auto_on_metal_is_mlx_until_measured_and_ours_where_mlx_has_nothing():
    m5 = Context(device.profile("m5"), False, NATIVE)
    decision = resolve.resolve("gemm", HALF, "auto", m5)
    assert decision.engine == "mlx" and "no paired measurement" in decision.why
    assert [e for e, _ in policy.order(m5.device, mlx_has_it=False)] == ["mpp", "simdgroup", "mlx"]


def test_auto_on_a_cpu_stream_goes_by_the_measured_systems(monkeypatch):
    chosen = {}
    for system in ("Linux", "Darwin", "Plan9"):
        monkeypatch.setattr("platform.system", lambda system=system: system)
        chosen[system] = policy.order(device.profile("linux-cpu"))[0]
    assert [engine for engine, _ in chosen.values()] == ["cpu", "mlx", "mlx"]
    assert all("unmeasured" in chosen[s][1] for s in ("Darwin", "Plan9"))


def test_exact_f32_on_an_m5_warns_about_mlx():
    assert "about 11 significant bits" in verdict("m5", "mlx", GemmSpec("float32", "float32", "float32")).reason
    assert "significant" not in verdict("m4", "mlx", GemmSpec("float32", "float32", "float32")).reason
    assert "significant" not in verdict("m5", "mlx", HALF).reason


def test_a_named_engine_that_cannot_run_says_why_and_what_would():
    with pytest.raises(EngineError, match=r"(?s)\[matmul\] engine 'mpp' cannot run this here: .*not on Metal.*nearest legal: .*mlx.*auto"):
        resolve.resolve("gemm", HALF, "mpp", Context(device.profile("linux-cpu"), False, NATIVE))
    with pytest.raises(EngineError, match=r"engine 'nax' is unknown.\n  nearest legal: auto, mpp, simdgroup, cpu, mlx"):
        resolve.resolve("gemm", HALF, "nax", Context(device.profile("linux-cpu"), False, NATIVE))


def test_f32_keeps_its_bits_unless_tf32_is_asked_for():
    m5 = Context(device.profile("m5"), False, NATIVE)
    relaxed = {}
    for operand, precision in (("float32", "exact"), ("float32", "tf32"), ("float16", "exact"), ("bfloat16", "exact")):
        spec = GemmSpec(operand, operand, operand, precision=precision)
        rows = resolve.resolve("gemm", spec, "mpp", m5).variants.rows
        relaxed[operand, precision] = {v.relaxed for v in rows}
    assert relaxed == {("float32", "exact"): {False}, ("float32", "tf32"): {True}, ("float16", "exact"): {True}, ("bfloat16", "exact"): {True}}


@pytest.mark.parametrize("family, spec", [
    ("qgemm", {}), ("gather", dict(rows="runs", op="gather_qmm")), ("gather", dict(rows="plan", block_m=128, op="gather_qmm")),
])
@pytest.mark.parametrize("x, step", [("bfloat16", 64), ("float32", 32)])
def test_entries_of_one_tile_keep_their_own_reasons(family, spec, x, step):
    """Blocks for half types and for f32 differ in nothing but how much of K they stage."""
    spec = WeightedSpec(x, x, WeightSpec("nvfp4", "uint32", "uint8"), **spec)
    decision = resolve.resolve(family, spec, "mpp", Context(device.profile("m5"), False, NATIVE))
    row = decision.variants.rows[-1]
    assert row.option("block_k", 32) == step and ("steps of 32" in decision.source[row.dataflow, row.tile]) is (step == 32)


def test_forcing_a_device_is_scoped_and_checked(monkeypatch):
    with device.force("m3") as forced:
        assert device.of_stream() is forced and forced.generation == 15
    assert device.of_stream().backend == "cpu"
    monkeypatch.setenv("MLX_TENSOROPS_DEVICE", "m5")
    assert device.of_stream().name == "m5"
    with pytest.raises(TensorOpsError, match="no profile is called 'm9'.\n  nearest legal: m1"):
        device.profile("m9")


def test_switches_are_a_closed_table(monkeypatch):
    with pytest.raises(TensorOpsError, match="MLX_TENSOROPS_NOPE is not a switch"):
        config.get("MLX_TENSOROPS_NOPE")
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", "/somewhere")
    assert config.cache_home() == "/somewhere"
    assert {name for name, _, _ in config.table()} == {s.name for s in config.SWITCHES}
