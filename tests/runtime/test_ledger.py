"""The ledger: numbers of streams for ever, whatever a kill leaves of an entry."""

import pytest

from tickrate.errors import RecordError, Refused
from tickrate.runtime import ledger as ledger_module
from tickrate.runtime.ledger import Ledger

LIFE = 99
FIRST = 4096 + ledger_module._HEAD + ledger_module._EXPECTED.size  # of the first entry's name, in the file


@pytest.fixture
def open_ledger(tmp_path):
    made = []

    def begin(life=LIFE, **options):
        made.append(Ledger(tmp_path / "ledger", life, **options))
        return made[-1]

    yield begin
    for ledger in made:
        ledger.close()


def test_streams_keep_their_numbers_and_their_place(open_ledger):
    ledger = open_ledger()
    keys = [("arm", 5), ("leg", 5), ("arm", 6), ("x" * 128, 2**53 - 1)]
    assert [ledger.stream(*key) for key in keys] == [0, 1, 2, 3]
    assert ledger.stream("leg", 5) == 1
    assert [ledger.expected(number) for number in range(4)] == [0, 0, 0, 0]
    ledger.advance(1, 700)
    ledger.advance(3, 2**40)
    ledger.close()
    again = open_ledger(life=1)  # the life is the one of its making
    assert again.life == LIFE
    assert [again.expected(number) for number in range(4)] == [0, 700, 0, 2**40]
    assert again.streams() == dict(enumerate(keys))
    assert again.stream("new", 1) == 4


def entry_of(path):
    """Return the bytes of a first entry as a whole one has them."""
    data = path.read_bytes()
    return data[FIRST : FIRST + ledger_module._NAME.size]


def test_a_kill_in_the_middle_of_an_entry_costs_a_number_at_most(open_ledger, tmp_path):
    """The entry is cut at each of its bytes: the stream is known or comes again, no two share a number."""
    path = tmp_path / "ledger"
    ledger = open_ledger(capacity=4)
    ledger.stream("worker-0", 0x0102030405060708 >> 12)
    ledger.close()
    whole, entry = path.read_bytes(), entry_of(path)
    outbox, outcomes = 0x0102030405060708 >> 12, set()
    for cut in range(len(entry) + 1):
        torn = entry[:cut].ljust(len(entry), b"\0")
        path.write_bytes(whole[:FIRST] + torn + whole[FIRST + len(entry) :])
        ledger = Ledger(path, LIFE, capacity=4)
        mine, other = ledger.stream("worker-0", outbox), ledger.stream("worker-1", outbox)
        assert mine != other
        ledger.advance(mine, 7)
        assert ledger.expected(other) == 0
        outcomes.add((mine, other))
        ledger.close()
        again = Ledger(path, LIFE, capacity=4)
        assert (again.stream("worker-0", outbox), again.stream("worker-1", outbox)) == (mine, other)
        assert again.expected(mine) == 7
        again.close()
    assert outcomes == {(0, 1), (1, 2)}  # taken over or written anew in place; or passed over


def test_a_full_ledger_refuses_new_streams_only(open_ledger):
    ledger = open_ledger(capacity=2)
    ledger.stream("a", 1)
    ledger.stream("b", 1)
    with pytest.raises(Refused, match="2 streams, its limit: 'c' cannot join"):
        ledger.stream("c", 1)
    assert ledger.stream("a", 1) == 0
    ledger.close()
    with pytest.raises(Refused):
        open_ledger(capacity=2).stream("a", 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"something else" * 500,
        lambda data: data[:-10],
        lambda data: data + b"\0",
        lambda data: data[:25] + b"\xff" + data[26:],
    ],
    ids=["empty", "foreign", "cut", "grown", "header"],
)
def test_a_damaged_file_is_an_error(open_ledger, tmp_path, damage):
    open_ledger().close()
    path = tmp_path / "ledger"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match=r"the ledger cannot be used: .*ledger"):
        open_ledger()


def test_a_ledger_of_another_size_is_refused(open_ledger):
    open_ledger(capacity=4).close()
    with pytest.raises(RecordError, match="streams is 4 there and 8 here"):
        open_ledger(capacity=8)
