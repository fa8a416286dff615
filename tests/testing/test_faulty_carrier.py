"""The faulty carrier does what it says, in the shares it was given, and the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tickrate.testing import FaultyCarrier
from tickrate.wire.carrier import make_key
from tickrate.wire.memory import MemoryCarrier, MemoryHub

ROWS, STATUS = make_key("r", "rows", "w"), make_key("r", "status", "w")
COUNT = 2000


def sent_through(**faults) -> tuple[list[int], FaultyCarrier]:
    """Return the numbers that arrive of 0 to 1999, and the carrier."""
    with MemoryHub() as hub:
        faulty = FaultyCarrier(MemoryCarrier(hub), **faults)
        box = MemoryCarrier(hub).subscribe(make_key("r", "*", "w"), capacity=3 * COUNT)
        for number in range(COUNT):
            faulty.publish(ROWS, b"%d" % number)
        faulty.release()
        return [int(payload) for payload in box.drain(3 * COUNT)], faulty


def test_without_faults_everything_arrives_in_order():
    arrived, faulty = sent_through()
    assert arrived == list(range(COUNT))
    assert faulty.passed == COUNT


def test_a_fifth_is_dropped():
    arrived, faulty = sent_through(drop=0.2, seed=1)
    assert arrived == sorted(set(arrived))
    assert len(arrived) == COUNT - faulty.dropped
    assert 340 <= faulty.dropped <= 460  # 400 +- 3.3 standard deviations


def test_a_fifth_arrives_twice():
    arrived, faulty = sent_through(duplicate=0.2, seed=1)
    times = Counter(arrived)
    assert set(times) == set(range(COUNT))
    assert sum(count == 2 for count in times.values()) == faulty.duplicated
    assert set(times.values()) == {1, 2}
    assert 340 <= faulty.duplicated <= 460


def test_a_fifth_is_overtaken_by_a_few():
    arrived, faulty = sent_through(reorder=0.2, seed=1)
    assert sorted(arrived) == list(range(COUNT))
    late = [number for i, number in enumerate(arrived) if any(other > number for other in arrived[:i])]
    assert len(late) > 0.9 * faulty.reordered  # neighbours that are both held back may keep their order
    assert 340 <= faulty.reordered <= 460
    assert max(i - number for i, number in enumerate(arrived)) < 10


def test_the_same_seed_does_the_same():
    faults = {"drop": 0.2, "duplicate": 0.2, "reorder": 0.2}
    first, _ = sent_through(**faults, seed=7)
    assert sent_through(**faults, seed=7)[0] == first
    assert sent_through(**faults, seed=8)[0] != first


def test_other_kinds_and_a_switched_off_one_are_left_alone():
    with MemoryHub() as hub:
        faulty = FaultyCarrier(MemoryCarrier(hub), kinds=["rows"], drop=1.0)
        rows, status = (faulty.subscribe(key, capacity=10) for key in (ROWS, STATUS))
        faulty.publish(ROWS, b"lost")
        faulty.publish(STATUS, b"acting")
        faulty.active = False
        faulty.publish(ROWS, b"kept")
        assert rows.drain(10) == [b"kept"]
        assert status.drain(10) == [b"acting"]


def test_it_is_a_carrier_in_all_else():
    with MemoryHub() as hub:
        faulty, other = FaultyCarrier(MemoryCarrier(hub), reorder=1.0), MemoryCarrier(hub)
        box, roster = other.subscribe(ROWS, capacity=10), other.watch(make_key("r", "present", "*"))
        key = make_key("r", "present", "w")
        faulty.announce(key)
        assert roster.present == faulty.watch(key).present == {key}
        faulty.publish(ROWS, b"held back, and lost at the end")
        assert faulty.connected
        faulty.close()
        assert not faulty.connected
        assert roster.present == frozenset()
        assert len(box) == 0


@pytest.mark.parametrize("faults", [{"drop": -0.1}, {"drop": 1.1}, {"drop": 0.6, "duplicate": 0.6}])
def test_shares_that_are_none_are_refused(faults):
    with MemoryHub() as hub, pytest.raises(ValueError, match="shares"):
        FaultyCarrier(MemoryCarrier(hub), **faults)
