"""The macOS workflow, as far as it can be judged without GitHub and without a Mac."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mlx_tensorops import registry

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github/workflows/macos.yml").read_text()
RUN_HERE = {"tools/ci/check_install.py", "tools/ci/emit_shaders.py"}  # by the tests below, and so by .ci/run
EXPRESSION = re.compile(r"\$\{\{\s*(\S+?)\s*\}\}")


def problems(text: str) -> list[str]:
    """What GitHub would refuse, or would silently not do."""
    flow = yaml.safe_load(text)
    found = []
    trigger = flow.get("on", flow.get(True))  # YAML 1.1 reads the key `on` as true
    if not isinstance(trigger, dict) or not set(trigger) <= {"push", "pull_request", "workflow_dispatch", "schedule"}:
        found.append(f"triggers: {trigger}")
    if flow.get("permissions") != {"contents": "read"}:
        found.append("permissions are wider than read")
    for unknown in {str(key) for key in flow} - {"name", "on", "True", "permissions", "jobs", "env", "concurrency"}:
        found.append(f"unknown key {unknown}")
    for name, job in flow["jobs"].items():
        for unknown in set(job) - {"name", "runs-on", "timeout-minutes", "strategy", "steps", "needs", "env", "if"}:
            found.append(f"{name}: unknown key {unknown}")
        if not re.fullmatch(r"macos-\d+", job.get("runs-on", "")):
            found.append(f"{name}: runs-on {job.get('runs-on')} is no pinned macOS")
        if not 0 < job.get("timeout-minutes", 0) <= 60:
            found.append(f"{name}: no time limit")
        axes = {f"matrix.{axis}" for axis in job.get("strategy", {}).get("matrix", {})}
        for expression in EXPRESSION.findall(str(job)):
            if expression not in axes:
                found.append(f"{name}: {expression} is not defined")
        for axis, values in job.get("strategy", {}).get("matrix", {}).items():
            found += [f"{name}: {axis} {value!r} is not text" for value in values if not isinstance(value, str)]
        found += [f"{name}: {problem}" for step in job["steps"] for problem in step_problems(step)]
        if not str(job["steps"][0].get("uses", "")).startswith("actions/checkout@"):
            found.append(f"{name}: nothing is checked out")
    return found


def step_problems(step: dict) -> list[str]:
    found = []
    if len({"uses", "run"} & set(step)) != 1:
        found.append(f"step {step} has not exactly one of uses and run")
    for unknown in set(step) - {"name", "uses", "with", "run", "env", "id", "if"}:
        found.append(f"unknown key {unknown}")
    if "uses" in step and not re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]):
        found.append(f"action {step['uses']} is not a pinned one of GitHub's own")
    if "run" in step:
        found += run_problems(step["run"])
    return found


def run_problems(command: str) -> list[str]:
    script = re.fullmatch(r"(python )?(tools/ci/[\w.]+)( [\w/]+)?", command)
    if not script:
        return [f"'{command}' is not one script of tools/ci"]
    path = ROOT / script[2]
    if not path.is_file():
        return [f"{script[2]} does not exist"]
    found = []
    if not script[1] and not os.access(path, os.X_OK):
        found.append(f"{script[2]} is not executable")
    if script[2] not in RUN_HERE and not re.search(r"^# Not in \.ci/run: \w", path.read_text(), re.M):
        found.append(f"{script[2]} is neither run on Linux nor says why not")
    return found


def test_the_workflow_has_no_problem():
    assert problems(TEXT) == []


@pytest.mark.parametrize("old, new, problem", [
    ("macos-26", "macos-latest", "runs-on macos-latest is no pinned macOS"),
    ("timeout-minutes: 30", "timeout-minute: 30", "unknown key timeout-minute"),
    ("matrix.python", "matrix.version", "matrix.version is not defined"),
    ('"3.10", ', "3.10, ", "python 3.1 is not text"),
    ("actions/checkout@v4", "someone/checkout@v4", "is not a pinned one of GitHub's own"),
    ("actions/setup-python@v5", "actions/setup-python@main", "is not a pinned one of GitHub's own"),
    ("tools/ci/install.sh", "tools/ci/instal.sh", "tools/ci/instal.sh does not exist"),
    ("run: tools/ci/install.sh", "run: pip install .", "is not one script of tools/ci"),
    ("contents: read", "contents: write", "permissions are wider than read"),
    ("        run: tools/ci/test_extension.sh", "        with: {}", "has not exactly one of uses and run"),
    ("  push:", "  pushed:", "triggers"),
])
def test_a_planted_mistake_is_a_problem(old, new, problem):
    assert old in TEXT
    assert any(problem in line for line in problems(TEXT.replace(old, new)))


@pytest.mark.parametrize("script", sorted((ROOT / "tools/ci").glob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_parse(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "set -euo pipefail" in script.read_text()


def python(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_check_install_accepts_this_installation():
    done = python("tools/ci/check_install.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "built for mlx" in done.stdout and "all data files are there" in done.stdout


def test_check_install_notices_missing_data(tmp_path):
    code = "import sys; sys.path.insert(0, 'tools/ci'); import check_install, pathlib; print(*check_install.missing(pathlib.Path(sys.argv[1])))"
    said = python("-c", code, tmp_path).stdout
    assert "gemm_mpp_direct.metal.j2" in said and "hm_abi.h" in said


@pytest.fixture(scope="module")
def shaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shaders")
    done = python("tools/ci/emit_shaders.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_variant_is_written(shaders):
    index = [line.split("\t") for line in (shaders / "index.tsv").read_text().splitlines()]
    assert len(index) == len({name for _, name in index})
    assert len(index) == sum(len(family.variants()) for family in registry.families().values()) > 0
    assert {version for version, _ in index} <= {"3.1", "3.2", "4.0"}
    for _, name in index:
        assert f" {Path(name).stem}(" in (shaders / name).read_text(encoding="ascii")


XCRUN = """#!/usr/bin/env bash
echo "$*" >> "$LOG"
case "$*" in
  *--version*) exit 0 ;;
  *-std=metal4.1*) [ -n "$KNOWS_41" ] || exit 1 ;;
esac
case "$*" in *broken.metal*) exit 1 ;; esac
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then touch "$2" 2>/dev/null || true; fi; shift; done
"""


@pytest.mark.parametrize("knows_41, broken, code, compiled", [("", False, 0, 2), ("yes", False, 0, 3), ("yes", True, 1, 3)])
def test_every_shader_reaches_the_metal_compiler(tmp_path, knows_41, broken, code, compiled):
    (tmp_path / "bin").mkdir()
    xcrun = tmp_path / "bin" / "xcrun"
    xcrun.write_text(XCRUN)
    xcrun.chmod(0o755)
    index = [("4.0", "tensor.metal"), ("3.1", "simdgroup.metal")] + [("3.1", "broken.metal")] * broken
    (tmp_path / "index.tsv").write_text("".join(f"{version}\t{name}\n" for version, name in index))
    log = tmp_path / "log"
    done = subprocess.run([ROOT / "tools/ci/metal_to_air.sh", tmp_path], capture_output=True, text=True, timeout=60, env={
        **os.environ, "PATH": f"{xcrun.parent}{os.pathsep}{os.environ['PATH']}", "LOG": str(log), "KNOWS_41": knows_41})
    assert done.returncode == code, done.stderr
    assert f"{compiled} AIR files, {int(broken)} failures" in done.stdout
    assert ("FAILED: broken.metal as Metal 3.1" in done.stderr) == broken
    commands = [line for line in log.read_text().splitlines() if f"-c {tmp_path}" in line]
    assert f"metal -std=metal4.0 -mmacosx-version-min=26.2 -Wall -Werror -c {tmp_path}/tensor.metal" in commands[0]
    assert ("-std=metal4.1" in commands[1]) == bool(knows_41)
