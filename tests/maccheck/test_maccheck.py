"""The Mac check can fail: each defect that its controls stand for is planted, and each control is blinded.

That takes many compiler runs, so most of it is the sweep's; ``python -m tools.maccheck`` provokes its controls in every run of its own.
"""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.maccheck import check, fetch, symbols
from tools.maccheck.controls import CONTROLS
from tools.maccheck.toolchain import Toolchain

ROOT = Path(__file__).parents[2]
METAL = [check.CPP / name for name in ("metal_encoder.cpp", "trace.cpp")]
HARMLESS = "int control() { return 0; }\n"


@pytest.fixture
def source(tmp_path):
    def write(text):
        path = tmp_path / "planted.cpp"
        path.write_text(text)
        return path
    return write


def by_name(part):
    (control,) = [c for c in CONTROLS if part in c.name]
    return control


def test_the_metal_half_needs_only_what_libmlx_exports():
    toolchain = Toolchain.make()
    objects = toolchain.compile(METAL)
    wanted = symbols.needed(objects)
    assert any("CommandEncoder21dispatch_threadgroups" in name for name in wanted)
    assert check.audit(toolchain, objects) >= 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("part, text", [
    ("a function that libmlx hides", r"^missing 1 of \d+ symbols: __ZN3mlx4core14get_block_dimsEiiii;"),
    ("a query that libmlx hides", r"^missing 1 of \d+ symbols: __ZN3mlx4core5metal16is_nax_availableEv;"),
    ("set_data of older MLX", r"^does not compile for macOS:\n.*no matching member function for call to 'set_data'"),
    ("get_command_encoder of older MLX", r"^does not compile for macOS:\n.*no member named 'get_command_encoder'"),
])
def test_a_defect_in_the_extension_is_reported(part, text, source):
    planted = source(by_name(part).source.read_text())
    with pytest.raises(check.Failed) as failure:
        check.run(lambda line: None, files=[*METAL, planted], controls=())
    assert re.search(text, str(failure.value), re.S), failure.value


@pytest.mark.exhaustive
def test_a_symbol_that_audit_excuses_is_still_missing_to_the_linker(source, monkeypatch):
    """Two independent judges: with the audit switched off, lld alone refuses the hidden function."""
    monkeypatch.setattr(check, "audit", lambda toolchain, objects: 0)
    planted = source(by_name("a function that libmlx hides").source.read_text())
    with pytest.raises(check.Failed, match=r"does not link for macOS:\n.*undefined symbol: __ZN3mlx4core14get_block_dims"):
        check.run(lambda line: None, files=[planted], controls=())


def test_another_nanobind_is_reported():
    with pytest.raises(check.Failed, match=r"^nanobind tag v21_system_libcpp_abi1 is not the nanobind_system_libcpp_abi1_a1_v22"):
        check.compare_tags(Toolchain.make("2.15.0"))


def test_a_warning_in_our_code_is_an_error(source):
    with pytest.raises(check.Failed, match="unused variable 'x'"):
        check.run(lambda line: None, files=[source("void control() { int x; }\n")], controls=())


@pytest.mark.exhaustive
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_blind_control_fails_the_check(control, source):
    if control.nanobind:
        blinded = dataclasses.replace(control, nanobind=fetch.pin("nanobind"))
    else:
        blinded = dataclasses.replace(control, source=source(HARMLESS))
    with pytest.raises(check.Failed, match=f"control '{re.escape(control.name)}' did not fail"):
        check.provoke(blinded)


@pytest.mark.exhaustive
@pytest.mark.parametrize("control", [c for c in CONTROLS if c.source], ids=lambda control: control.name)
def test_a_control_that_fails_for_another_reason_fails_the_check(control, source):
    broken = dataclasses.replace(control, source=source("int control() { return undeclared; }\n"))
    with pytest.raises(check.Failed, match=f"control '{re.escape(control.name)}' failed, but not for its reason"):
        check.provoke(broken)


def test_every_source_is_checked_but_those_of_other_processors():
    names = {path.name for path in check.sources()}
    everything = {path.name for path in check.CPP.rglob("*.cpp")}
    assert {"metal_encoder.cpp", "kernel_primitive.cpp", "bindings.cpp"} <= names
    assert all(re.search(r"_avx(2|512)\.cpp$", name) for name in everything - names)


def test_a_control_has_a_reason():
    assert all(control.reasons and (control.source or control.nanobind) for control in CONTROLS)
    assert all(control.source.is_file() for control in CONTROLS if control.source)


@pytest.mark.parametrize("ci, code", [("true", 1), ("", 3)])
def test_an_unreachable_registry_is_loud(ci, code, tmp_path):
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_EXTRA_INDEX_URL": "",
               "PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "2"}
    environment = {**os.environ, **offline, "CI": ci, "MLX_TENSOROPS_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "tools.maccheck"], cwd=ROOT, env=environment, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == code
    assert "NOT CHECKED, nothing is known about macOS: pip download" in done.stderr
    assert "missing 0" not in done.stdout
