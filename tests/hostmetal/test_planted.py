"""Every planted fault is found: right kind, right line. The same binary without the fault is clean and right."""

import numpy as np
import pytest

from mlx_tensorops import hostmetal

from .planted_cases import BY_NAME, CASES

FAULTS = [(case, fault) for case in CASES for fault in sorted(case.marks())]

# Faults of the launch, not of the text: kernel, what differs in the dispatch, kind.
LAUNCHES = [
    ("tensor", dict(threadgroup=64), "scope_threads"),
    ("tensor", dict(threadgroup=256), "scope_threads"),
    ("tensor", dict(threadgroup=96), "scope_threads"),
    ("tensor", dict(threadgroup=100), "scope_threads"),
    ("tensor", dict(threadgroup=128, threads=250), "scope_threads"),
    ("coop", dict(threadgroup=16), "scope_threads"),
    ("staged", dict(threadgroup=120), "scope_threads"),
    ("memory", dict(threadgroup=129), "threads"),
    ("memory", dict(threadgroup=(32, 5)), "threads"),
    ("memory", dict(threadgroup=1024), "threads"),
    ("memory", dict(threadgroup_memory={0: 32768}), "threadgroup_memory"),
    ("memory", dict(threadgroup_memory={0: 32768 - 496}), "threadgroup_memory"),
    ("memory", dict(threadgroup_limit=1008), "threadgroup_memory"),
    ("memory", dict(threadgroup_memory={0: 496}), "out_of_bounds"),
    ("transpose", dict(grid=(4, 2)), None),
    ("stage", dict(grid=5), "out_of_bounds"),
    ("vector", dict(threadgroup=65, grid=2), "out_of_bounds"),
]


@pytest.fixture(scope="module")
def checked():
    """name -> kernel, compiled on first use: one build serves all faults of a text."""
    built = {}

    def get(name):
        if name not in built:
            built[name] = hostmetal.compile(BY_NAME[name].source, checked=True)
        return built[name]

    return get


def _run(kernel, case, bug=0, **changes):
    arguments = {"grid": case.grid, "threadgroup": case.threadgroup, **case.options, **changes}
    return kernel.dispatch(buffers=case.buffers(bug), allow_findings=True, **arguments)


def test_enough_faults_of_every_kind():
    planted = len(FAULTS) + sum(kind is not None for _, _, kind in LAUNCHES)
    kinds = {kind for case in CASES for marks in case.marks().values() for kind, _ in marks} | {kind for _, _, kind in LAUNCHES if kind}
    assert planted >= 80
    assert kinds >= {"out_of_bounds", "misaligned", "race", "barrier_flags", "group_race", "uninitialised", "local_overrun", "capacity",
                     "divergence", "deadlock", "scope_threads", "threadgroup_memory", "threads", "stack_overflow", "arithmetic", "timeout", "crash"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clean_twin(checked, case, seed):
    result = _run(checked(case.name), case, order_seed=seed)
    assert result.findings == ()
    assert not case.wrong(result.outputs)


@pytest.mark.parametrize("case, fault", FAULTS, ids=lambda v: getattr(v, "name", v))
def test_fault(checked, case, fault):
    result = _run(checked(case.name), case, fault)
    places = {(f.kind, line) for f in result.findings for line in (f.line, f.related)}
    assert places & case.marks()[fault], f"wanted one of {sorted(case.marks()[fault])}, got {[str(f) for f in result.findings]}"
    for finding in result.findings:
        assert finding.rule and finding.message and finding.kernel == checked(case.name).name


@pytest.mark.parametrize("name, changes, kind", LAUNCHES, ids=lambda v: v if isinstance(v, str) else None)
def test_launch(checked, name, changes, kind):
    case = BY_NAME[name]
    if "threads" in changes:
        changes = {**changes, "grid": 2}
    kinds = {f.kind for f in _run(checked(name), case, **changes).findings}
    assert kind in kinds if kind else not kinds


def test_findings_name_buffer_byte_and_threads(checked):
    (finding,) = _run(checked("stage"), BY_NAME["stage"], 7).findings
    assert (finding.buffer, finding.variable, finding.offset, finding.threads, finding.threadgroup) == (1, "y", 2048, (127,), (3, 0, 0))
    race = next(f for f in _run(checked("exchange"), BY_NAME["exchange"], 1).findings if f.kind == "race")
    assert race.buffer == 1 and race.offset % 4 == 0 and len(race.threads) == 2
    assert race.related == next(i for i, line in enumerate(BY_NAME["exchange"].source.splitlines(), 1) if "@3 race" in line)


def test_findings_raise_unless_allowed(checked):
    case = BY_NAME["stage"]
    with pytest.raises(hostmetal.HostMetalError, match="out_of_bounds") as caught:
        checked("stage").dispatch(grid=case.grid, threadgroup=case.threadgroup, buffers=case.buffers(7))
    assert caught.value.findings[0].kind == "out_of_bounds"


@pytest.mark.parametrize("fault, kind", [(1, "arithmetic"), (2, "timeout"), (3, "crash"), (4, "stack_overflow"), (6, "crash"), (7, "timeout")])
def test_the_process_survives_in_process_too(checked, fault, kind):
    case = BY_NAME["fatal"]
    result = _run(checked("fatal"), case, fault, isolate=False, timeout=0.3)
    assert kind in {f.kind for f in result.findings}
    assert not case.wrong(_run(checked("fatal"), case, isolate=False).outputs)


def test_fast_build_finds_overruns_at_their_line():
    case = BY_NAME["stage"]
    kernel = hostmetal.compile(case.source)
    result = kernel.dispatch(grid=40, threadgroup=128, buffers=case.buffers(), allow_findings=True)
    line = next(i for i, text in enumerate(case.source.splitlines(), 1) if "= x[from]" in text)
    assert [(f.kind, f.line, f.buffer) for f in result.findings] == [("out_of_bounds", line, 0)]
    stored = kernel.dispatch(grid=4, threadgroup=128, buffers=case.buffers(7), allow_findings=True)
    assert "out_of_bounds" in {f.kind for f in stored.findings}
    assert np.array_equal(kernel.dispatch(grid=4, threadgroup=128, buffers=case.buffers()).outputs[1], case.oracle(case.buffers())[1])
