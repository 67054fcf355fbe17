"""The emulator, exhaustively: MLX's instantiations by name, mutants at other sites, planted faults in other orders."""

from __future__ import annotations

import functools

from mlx_tensorops import hostmetal
from tests.hostmetal import mlx_names, mutants, planted_cases
from tools.maccheck import fetch

CHUNK = 32
SEEDS = range(100, 108)
ORDERS = range(1, 5)


@functools.cache
def _names() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for family, _, instance in mlx_names.instantiations(mlx_names.kernel_names(fetch.mac_mlx() / "lib" / "mlx.metallib")):
        found.setdefault(family, []).append(instance)
    return found


def items():
    for family, instances in _names().items():
        for start in range(0, len(instances), CHUNK):
            yield f"mlx/{mlx_names.FAMILIES[family][1][-1]}/{family}/{start}", lambda f=family, i=instances[start : start + CHUNK]: _instantiate(f, i)
    for case in planted_cases.CASES:
        if case.name != "fatal":
            for seed in SEEDS:
                yield f"mutants/{case.name}/{seed}", lambda c=case, s=seed: _mutants(c, s)
        for order in ORDERS:
            yield f"orders/{case.name}/{order}", lambda c=case, o=order: _orders(c, o)


def _instantiate(family: int, instances: list[str]) -> None:
    complaint = mlx_names.syntax_check(fetch.mac_mlx() / "include", family, instances)
    assert not complaint, complaint[:3000]


def _mutants(case: planted_cases.Case, seed: int) -> None:
    survivors = [str(m) for _, m in mutants.draw([case], 4, seed) if mutants.survives(case, m)]
    assert not set(survivors) - set(mutants.EQUIVALENT.get(case.name, {})), survivors


def _orders(case: planted_cases.Case, order: int) -> None:
    kernel = hostmetal.compile(case.source, checked=True)
    arguments = dict(grid=case.grid, threadgroup=case.threadgroup, order_seed=order, allow_findings=True, **case.options)
    for fault, marks in case.marks().items():
        findings = kernel.dispatch(buffers=case.buffers(fault), **arguments).findings
        assert {kind for kind, _ in marks} & {f.kind for f in findings}, (fault, [str(f) for f in findings])
    assert not kernel.dispatch(buffers=case.buffers(), **arguments).findings
