from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tickrate.wire.credits import CreditGranter, CreditSender, RowQueue

ROW = np.dtype([("number", "<i8")])


def numbers(first: int, count: int) -> np.ndarray:
    rows = np.zeros(count, ROW)
    rows["number"] = np.arange(first, first + count)
    return rows


def test_nothing_is_sent_before_the_first_grant():
    sender = CreditSender()
    assert sender.may_send(10) == 0
    sender.on_credit(4)
    assert sender.may_send(10) == 4
    assert sender.sent(3) == 0
    assert sender.sent(1) == 3
    assert sender.available == 0
    with pytest.raises(ValueError, match="1 rows with a credit of 0"):
        sender.sent(1)


def test_an_overtaken_grant_takes_nothing_back():
    sender = CreditSender()
    sender.on_credit(10)
    sender.on_credit(4)
    assert sender.granted == 10


def test_grants_move_with_what_is_stored():
    granter = CreditGranter(8)
    granter.on_hello(1, 0)
    assert granter.next_grant() == 8
    assert granter.next_grant() is None
    assert granter.on_rows(1, 0, 1) == 0
    assert granter.next_grant() is None  # one row is under a quarter of the window
    assert granter.on_rows(1, 1, 1) == 0
    assert granter.next_grant() == 10
    assert granter.next_grant(repeat=True) == 10


def test_repeated_rows_are_left_out_and_lost_ones_counted():
    granter = CreditGranter(100)
    assert granter.on_rows(1, 0, 5) == 0
    assert granter.on_rows(1, 3, 5) == 2  # rows 3 and 4 again, 5..7 new
    assert granter.on_rows(1, 2, 3) == 3  # all again
    assert granter.expected == 8
    assert granter.on_rows(1, 12, 2) == 0  # 8..11 never came
    assert (granter.expected, granter.lost, granter.repeated) == (14, 4, 5)


def test_a_new_boot_starts_from_its_first_row_and_the_old_one_is_left_out():
    granter = CreditGranter(10)
    granter.on_rows(5, 0, 7)
    assert granter.on_rows(6, 2, 1) == 0  # rows 0 and 1 of boot 6 were lost with its Hello
    assert (granter.boot, granter.expected, granter.lost) == (6, 3, 2)
    assert granter.next_grant() == 13
    assert granter.on_rows(5, 7, 4) == 4
    assert (granter.boot, granter.expected) == (6, 3)


def test_a_restarted_trainer_counts_from_where_the_worker_stands():
    granter = CreditGranter(10)
    assert granter.on_rows(5, 1000, 3) == 0
    assert (granter.granted, granter.lost) == (1013, 0)


def test_a_hello_counts_even_after_the_clock_was_set_back():
    granter = CreditGranter(10)
    granter.on_rows(9, 0, 4)
    granter.on_hello(3, 0)
    assert granter.on_rows(3, 0, 2) == 0
    assert granter.expected == 2


def test_a_second_hello_of_the_same_boot_changes_nothing():
    granter = CreditGranter(10)
    granter.on_rows(9, 0, 4)
    granter.on_hello(9, 0)
    assert granter.expected == 4


def test_a_slow_trainer_bounds_the_buffer_and_drops_are_counted():
    """The worker makes 10 rows a tick, the trainer stores at most 4: queue and mailbox stay bounded."""
    sender, granter, queue = CreditSender(), CreditGranter(20), RowQueue(ROW, 50)
    way: list[tuple[int, np.ndarray]] = []
    stored: list[int] = []
    granter.on_hello(1, 0)
    for tick in range(200):
        queue.put(numbers(tick * 10, 10))
        if (grant := granter.next_grant()) is not None:
            sender.on_credit(grant)
        if count := sender.may_send(len(queue)):
            way.append((sender.sent(count), queue.take(count)))
        assert len(queue) <= 50
        assert sum(len(rows) for _, rows in way) <= 20
        if tick % 2 and way:
            first, rows = way.pop(0)
            stored += rows[granter.on_rows(1, first, len(rows)) :]["number"].tolist()
    in_flight = sum(len(rows) for _, rows in way)
    assert len(stored) + in_flight + len(queue) + queue.dropped == 2000
    assert queue.dropped > 900
    assert stored == sorted(set(stored))
    assert granter.lost == 0


def test_rows_lost_on_the_way_do_not_stop_the_flow():
    """All of a window is lost: the worker, out of credit, says where it stands and gets going again."""
    sender, granter = CreditSender(), CreditGranter(8)
    granter.on_hello(1, 0)
    sender.on_credit(granter.next_grant() or 0)
    sender.sent(8)  # never arrive
    assert granter.next_grant(repeat=True) == 8
    assert sender.available == 0
    granter.on_rows(1, sender.next_sequence, 0)
    sender.on_credit(granter.next_grant() or 0)
    assert sender.available == 8
    assert granter.lost == 8


@given(st.lists(st.tuples(st.sampled_from("sdrg"), st.integers(1, 9)), max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_mix_of_loss_and_repetition_stores_each_row_at_most_once(events):
    """s: send, d: lose the oldest on the way, r: deliver it and leave a copy, g: the grant arrives."""
    sender, granter = CreditSender(), CreditGranter(16)
    granter.on_hello(1, 0)
    way: list[tuple[int, int]] = []
    stored: list[int] = []
    for what, count in events:
        if what == "s" and (n := sender.may_send(count)):
            way.append((sender.sent(n), n))
        elif what == "d" and way:
            way.pop(0)
        elif what == "r" and way:
            first, n = way[0]
            stored += range(first + granter.on_rows(1, first, n), first + n)
            if count < 6:
                way.pop(0)
        elif what == "g":
            sender.on_credit(granter.granted)
        assert sender.next_sequence <= granter.expected + granter.window
    assert stored == sorted(set(stored))
    assert len(stored) + granter.lost == granter.expected


def test_the_queue_wraps_and_drops_the_oldest():
    queue = RowQueue(ROW, 5)
    queue.put(numbers(0, 3))
    assert queue.take(2)["number"].tolist() == [0, 1]
    queue.put(numbers(3, 4))
    assert (len(queue), queue.dropped) == (5, 0)
    queue.put(numbers(7, 2))
    assert (len(queue), queue.dropped) == (5, 2)
    assert queue.take(99)["number"].tolist() == [4, 5, 6, 7, 8]
    assert len(queue.take(1)) == 0


def test_a_block_larger_than_the_queue_keeps_its_newest_rows():
    queue = RowQueue(ROW, 4)
    queue.put(numbers(0, 2))
    queue.put(numbers(2, 10))
    assert queue.dropped == 8
    assert queue.take(4)["number"].tolist() == [8, 9, 10, 11]


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_queue_is_a_list_with_a_limit(capacity, operations):
    queue, model, made = RowQueue(ROW, capacity), [], 0
    for put, count in operations:
        if put:
            queue.put(numbers(made, count))
            model = [*model, *range(made, made + count)][-capacity:]
            made += count
        else:
            taken, model = model[:count], model[count:]
            assert queue.take(count)["number"].tolist() == taken
        assert len(queue) == len(model)


@pytest.mark.parametrize("make", [lambda: CreditGranter(0), lambda: RowQueue(ROW, 0)])
def test_limits_of_nothing_are_refused(make):
    with pytest.raises(ValueError, match="give 1 or more"):
        make()
