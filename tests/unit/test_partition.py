"""Selection as pure functions: which instruction, which dataflow, which partition, which policy class; no arrays, no kernel."""

import pytest

from mlx_tensorops import device, select
from mlx_tensorops.errors import RuleError
from mlx_tensorops.policies import gemm as table
from mlx_tensorops.policies import partition
from mlx_tensorops.primitives import _dataflow, gemm, gemm_dataflows
from mlx_tensorops.spec import GemmSpec
from mlx_tensorops.variant import Tile

METAL4 = ("metal", "gpu", "metal4")


@pytest.mark.parametrize("m, n, warps, policy, expected", [
    (64, 128, 4, "square", (2, 2)),  # 32x64 each: 2x2 operations
    (64, 128, 8, "square", (2, 4)),  # 32x32 each beats 16x64: as far from balance, less to load
    (128, 128, 16, "square", (4, 4)),
    (16, 128, 4, "square", (1, 4)), (32, 128, 4, "square", (1, 4)), (64, 32, 4, "square", (4, 1)), (64, 64, 4, "square", (2, 2)),
    (64, 128, 1, "square", (1, 1)), (64, 128, 16, "square", (4, 4)),
    (64, 128, 4, "full_row", (4, 1)), (64, 128, 4, "full_column", (1, 4)),
    (64, 128, 32, "square", None),  # 16 operations are no work for 32 simdgroups
    (64, 128, 3, "square", None), (64, 96, 3, "square", (1, 3)),  # 128 columns do not divide by 3
    (64, 128, 8, "full_column", None), (64, 128, 8, "full_row", None),
    (15, 128, 1, "square", None), (16, 31, 1, "square", None), (16, 32, 1, "square", (1, 1)),
])
def test_warp_partition(m, n, warps, policy, expected):
    assert partition.warp_partition(m, n, warps, policy) == expected


def test_the_chosen_partition_is_never_less_balanced_than_another():
    for m in (16, 32, 64, 128, 256):
        for n in (32, 64, 128, 256):
            for warps in (1, 2, 4, 8, 16):
                legal = partition.partitions(m, n, warps)
                chosen = partition.warp_partition(m, n, warps)
                assert (chosen is None) is (not legal)
                for along_m, along_n in legal:
                    assert along_m * along_n == warps and m % (16 * along_m) == n % (32 * along_n) == 0
                    assert abs(m // chosen[0] // 16 - n // chosen[1] // 32) <= abs(m // along_m // 16 - n // along_n // 32)


@pytest.mark.parametrize("m, n, k, threads, expected", [
    (64, 128, 16, 128, True), (48, 96, 16, 96, True),
    (65, 128, 16, 128, False), (64, 127, 16, 128, False), (64, 112, 16, 128, False), (64, 128, 8, 128, False), (64, 128, 24, 128, False),
    (64, 128, 16, 127, False), (64, 128, 16, 129, False), (64, 128, 16, 1024, False),
])
def test_can_use_cooperative_tensor(m, n, k, threads, expected):
    assert partition.can_use_cooperative_tensor(m, n, k, threads) is expected


def test_stage_1_needs_the_key_and_the_shape():
    assert partition.instruction(METAL4, 64, 128, 16, 128) == "mpp"
    assert partition.instruction(("metal", "gpu"), 64, 128, 16, 128) == "simdgroup"
    assert partition.instruction(METAL4, 64, 120, 16, 128) == "simdgroup"
    assert partition.instruction(METAL4, 64, 128, 16, 256, "full_column") == "simdgroup"
    assert partition.instruction((), 1, 1, 1, 1) == "simdgroup", "the fallback never fails"


def test_stage_2_asks_whether_staging_carries_meaning():
    found = {(engine, shared): partition.dataflow(engine, shared=shared) for engine in ("mpp", "simdgroup") for shared in (False, True)}
    assert found == {("mpp", False): "direct", ("mpp", True): "staged", ("simdgroup", False): "registers", ("simdgroup", True): "staged"}
    assert all(key in gemm_dataflows.dataflows() for key in ((engine, flow) for (engine, _), flow in found.items()))


@pytest.mark.parametrize("profile, keys", [
    ("m5", METAL4), ("m5-max", METAL4), ("a19", METAL4), ("m5-os27", METAL4), ("m5-os26.0", ("metal", "gpu")), ("m4", ("metal", "gpu")),
    ("a18-pro", ("metal", "gpu")), ("virtual-gpu", ("metal", "gpu")), ("linux-cpu", ()), ("cuda", ()),
])
def test_the_metal4_key(profile, keys):
    assert select.target_keys(device.profile(profile)) == keys


def test_contradictions_are_refused():
    with pytest.raises(RuleError, match="warp policy 'round' is unknown.\n  nearest legal: square, full_row, full_column"):
        partition.warp_partition(64, 128, 4, "round")
    with pytest.raises(RuleError, match="3 simdgroups cannot share a 64x128 block"):
        partition.cooperative_tile(64, 128, 3)
    with pytest.raises(RuleError, match="does not divide into whole cooperative operations of 4 simdgroups"):
        table.Entry("mpp", "direct", Tile(64, 64, 2, 2, 8, 8, 8), "operations of 8x8")


@pytest.mark.parametrize("policy, keys", [
    ("4-simdgroup", {("mpp", "direct")}), ("8-simdgroup", {("mpp", "direct8"), ("mpp", "register_direct")}), ("shared", {("mpp", "staged")}),
    ("simdgroup", {("simdgroup", "registers"), ("simdgroup", "staged")}), ("narrow", {("mpp", "direct")}), ("views", {("mpp", "tensor")}),
    ("split-k", {("mpp", "split_k"), ("simdgroup", "split_k"), ("simdgroup", "accumulate")}),
])
def test_policy_classes(policy, keys):
    assert {(e.engine, e.dataflow) for e in table.tables() if e.policy == policy} == keys


def test_every_policy_class_is_told_and_every_entry_has_a_reason():
    assert {e.policy for e in table.tables()} == {p.name for p in table.POLICIES} and all(p.text for p in table.POLICIES)
    assert all(len(e.why) > 20 for e in table.tables())


@pytest.mark.parametrize("engine", ["mpp", "simdgroup"])
@pytest.mark.parametrize("operand", ["float16", "bfloat16", "float32"])
def test_the_last_rows_of_every_set_serve_everything(engine, operand):
    spec = GemmSpec(operand, operand, operand)
    rows = gemm.rows(spec, engine, table.choose(spec, engine))
    for layout in ("nn", "nt", "tn", "tt", "strided"):
        assert any((v.size, v.layout, v.alignment) == ("", layout, "ragged") for v in rows)
    assert (rows[-1].size, rows[-1].layout, rows[-1].alignment) == ("", "strided", "ragged")


def test_registers_per_lane_are_limited():
    """f32 ``direct`` takes exactly the limit: 64 words of C, two fragments of A and one of B of 8 and 16 words."""
    direct = Tile(64, 128, 2, 2, 16, 32, 16)
    exact = GemmSpec("float32", "float32", "float32")
    cost = gemm.cost(gemm.rows_of(exact, "mpp", "direct", direct)[0])
    assert (cost.accumulator_words, cost.operand_words) == (64, 32) and _dataflow.WORDS_LIMIT == 96
    wide = Tile(128, 128, 2, 2, 16, 32, 16)  # 64x64 per simdgroup: 128 words of C alone
    with pytest.raises(RuleError, match=r"152 words per lane \(128 of C, 24 of A and B\) where 96 fit"):
        gemm.rows_of(GemmSpec("float16", "float16", "float16"), "mpp", "direct", wide)
    taken = gemm.rows(exact, "mpp", (table.Entry("mpp", "direct", wide, "too wide for any operand"), table.Entry("mpp", "direct", direct, "fits any operand")))
    assert {v.tile for v in taken} == {direct}, "an entry that refuses falls out of its set"
    for v in gemm.variants():
        assert _dataflow.too_many_words(gemm.cost(v)) == []
