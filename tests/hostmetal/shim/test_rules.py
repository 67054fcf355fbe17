"""The tables of what the compiler must reject and accept, and the switches of SDK and dialect."""

import pytest

from mlx_tensorops import hostmetal

from .rule_cases import ACCEPTED_LANGUAGE, ACCEPTED_OPERATIONS, MPP, PRELUDE, REJECTED


def _compile(source, **options):
    return hostmetal.compile(source, "k", **options)


@pytest.mark.parametrize("case", REJECTED, ids=lambda c: f"{c.name}-{c.known}")
def test_rejected(case):
    if case.lint:
        assert hostmetal.lint(case.source(), sdk=case.sdk, dialect=case.dialect)
        return
    with pytest.raises(hostmetal.CompileError) as caught:
        _compile(case.source(), sdk=case.sdk, dialect=case.dialect)
    assert case.says in str(caught.value)


@pytest.mark.parametrize("case", [c for c in REJECTED if c.elsewhere], ids=lambda c: c.name)
def test_the_switch_accepts_the_same_text_elsewhere(case):
    sdk, dialect = case.elsewhere
    _compile(case.source(), sdk=sdk, dialect=dialect)


@pytest.mark.parametrize("dialect", ["4.0", "4.1"])
def test_accepted(dialect):
    hostmetal.compile(PRELUDE + ACCEPTED_LANGUAGE, "a11", dialect=dialect, function_constants={200: True})
    hostmetal.compile(MPP + ACCEPTED_OPERATIONS, "k", dialect=dialect)
    assert not hostmetal.lint(PRELUDE + ACCEPTED_LANGUAGE, dialect=dialect)
    assert not hostmetal.lint(MPP + ACCEPTED_OPERATIONS, dialect=dialect)
