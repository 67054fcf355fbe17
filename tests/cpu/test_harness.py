"""The measuring itself."""

from __future__ import annotations

import time

from benchmarks.harness import Gate, OtherLoad, interleave


def test_arms_take_turns_in_rotated_order():
    order = []
    arms = {name: (lambda n=name: order.append(n)) for name in "abc"}
    times = interleave(arms, rounds=3)
    assert order == [*"abc", *"abc", *"bca", *"cab"]  # one warm-up of each, then the rounds
    assert {t.samples for t in times.values()} == {3}


def test_times_are_per_call_and_ordered():
    times = interleave({"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.004)}, rounds=5, calls=2)
    assert 0.0005 <= times["short"].best <= times["short"].median < times["long"].best
    assert 0.002 <= times["long"].best


def test_a_slow_arm_rests_but_keeps_three_samples():
    times = interleave({"slow": lambda: time.sleep(0.03), "quick": lambda: None}, rounds=20, budget=0.08)
    assert times["slow"].samples == 3 and times["quick"].samples == 20


def test_gates():
    assert Gate("speed", 0.9, 0.85).ok and not Gate("speed", 0.8, 0.85).ok
    assert Gate("error", 1.0, 1.1, at_least=False).ok and not Gate("error", 1.2, 1.1, at_least=False).ok
    skipped = Gate("scaling", 0.1, 1.6, unjudged="other processes kept 1.00 cores busy")
    assert skipped.ok and "not judged" in str(skipped) and "1.00 cores" in str(skipped)
    assert "FAIL" in str(Gate("speed", 0.8, 0.85))


def test_own_work_is_not_other_load(monkeypatch):
    samples = iter([(10.0, 2.0, 100.0), (11.5, 3.0, 101.0)])  # busy, own, wall
    monkeypatch.setattr(OtherLoad, "_now", staticmethod(lambda: next(samples)))
    with OtherLoad() as load:
        pass
    assert load.cores == 0.5


def test_load_is_unknown_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setattr(OtherLoad, "_now", staticmethod(lambda: None))
    with OtherLoad() as load:
        pass
    assert load.cores is None
