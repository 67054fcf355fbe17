"""One-way imports, an import that costs little, and no environment variable outside the table."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "mlx_tensorops"

# A module may import from its own layer and from those before it. What is not named here is a leaf that may import anything.
LAYERS = (
    ("errors", "version"),
    ("config", "rules"),
    ("dtypes", "device", "epilogues", "formats"),
    ("spec",),
    ("variant", "cost", "signature", "registry", "select", "reference", "plans"),
    ("policies",),
    ("policy", "guards", "resolve", "manifests", "shaders", "tracing"),
    ("primitives",),
    ("explanation", "diagnosis", "demo"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MLX_ALLOWED = {"device", "reference", "plans", "primitives", "diagnosis", "demo", "hostmetal"}


def imported(path: Path) -> list[tuple[str, bool]]:
    """(top-level module of this package or "mlx", whether the import stands at module level)."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            full = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{full}.{a.name}" for a in node.names] if full == "mlx_tensorops" else [full]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "mlx_tensorops" and len(parts) > 1:
                found.append((parts[1], id(node) in top))
            elif parts[0] == "mlx":
                found.append(("mlx", id(node) in top))
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if "hostmetal" not in p.parts)


def backward(own: str, imports: list[tuple[str, bool]]) -> list[str]:
    """Imports of a module that do not point one way."""
    found = [f"{own} imports mlx" for name, _ in imports if name == "mlx" and own not in MLX_ALLOWED]
    found += [f"{own} (layer {RANK[own]}) imports {name} (layer {RANK[name]})" for name, at_top in imports if at_top and RANK.get(name, -1) > RANK[own]]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own not in ("__init__", "__main__"):
        assert own in RANK, f"{own} has no layer: name it in LAYERS"
        assert backward(own, imported(path)) == []


def test_a_backward_import_is_seen():
    assert backward("errors", [("registry", True)]) == ["errors (layer 0) imports registry (layer 4)"]
    assert backward("rules", [("mlx", False)]) == ["rules imports mlx"]
    assert backward("primitives", [("rules", True), ("mlx", True), ("explanation", False)]) == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "hostmetal").rglob("*.py")), ids=lambda p: p.name)
def test_hostmetal_stands_alone(path):
    outside = {name for name, _ in imported(path)} - {"hostmetal", "errors", "config", "mlx", "version", "primitives"}
    assert not outside, f"{path.name} imports {outside}"


def test_environment_is_read_in_one_place():
    strays = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "config.py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "os.environ" in line or "getenv" in line:
                strays.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert not strays, "\n".join(strays)


def test_import_is_cheap_and_creates_nothing():
    """Best of 7 fresh processes; numpy and jinja2 stay out, nothing is compiled or allocated."""
    code = (
        "import time, sys, json, mlx.core as mx\n"
        "before, memory = set(sys.modules), mx.get_active_memory()\n"
        "start = time.perf_counter(); import mlx_tensorops; seconds = time.perf_counter() - start\n"
        "new = set(sys.modules) - before\n"
        "print(json.dumps([seconds, sorted(n for n in ('numpy', 'jinja2', 'mlx_tensorops._ext', 'mlx_tensorops.hostmetal') if n in new),"
        " mx.get_active_memory() - memory]))\n"
    )
    runs = [json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout) for _ in range(7)]
    assert all(not heavy and not memory for _, heavy, memory in runs), runs
    assert min(seconds for seconds, _, _ in runs) <= 0.150, runs
