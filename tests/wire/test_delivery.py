"""Numbered delivery: nothing is sent without a grant, nothing taken twice, nothing missing goes unnoticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickrate.wire.delivery import LONGEST_PAUSE_S, RESEND_AFTER_S, Receiver, Sender


def test_nothing_is_sent_before_the_first_grant():
    sender = Sender()
    assert sender.may_send(100, 10) == 0
    sender.on_ack(0, 4, resend=False, now=0.0)
    assert sender.may_send(100, 10) == 4  # the grant
    assert sender.may_send(3, 10) == 3  # what there is
    assert sender.may_send(100, 2) == 2  # what fits into a message
    sender.sent(3, 0.0)
    assert (sender.next, sender.may_send(100, 10)) == (3, 1)
    with pytest.raises(ValueError, match="2 rows from 3 on with a grant of 4"):
        sender.sent(2, 0.0)


def test_an_overtaken_acknowledgement_takes_nothing_back():
    sender = Sender()
    sender.on_ack(5, 10, resend=False, now=0.0)
    sender.on_ack(3, 8, resend=True, now=1.0)
    assert (sender.acknowledged, sender.granted, sender.next, sender.resent) == (5, 10, 5, 0)


def test_a_wish_to_resend_goes_back_to_the_acknowledged_row():
    sender = Sender()
    sender.on_ack(0, 100, resend=False, now=0.0)
    sender.sent(40, 0.0)
    sender.on_ack(10, 110, resend=True, now=0.5)
    assert (sender.next, sender.resent) == (10, 30)
    sender.on_ack(10, 110, resend=False, now=0.6)
    sender.sent(30, 0.6)
    assert sender.next == 40


def test_silence_brings_everything_again_with_pauses_that_double():
    sender = Sender()
    sender.on_ack(0, 100, resend=False, now=0.0)
    assert not sender.overdue(1000.0)  # nothing is under way
    sender.sent(10, 0.0)
    moments = []
    for tick in range(10_000):
        now = tick / 100
        if sender.overdue(now):
            moments.append(now)
            sender.rewind(now)
            sender.sent(10, now)
    # 10 s after the start, then 20, 40 and 60 s after the one before
    assert moments == pytest.approx([10.0, 30.0, 70.0])
    assert (RESEND_AFTER_S, LONGEST_PAUSE_S) == (10.0, 60.0)
    sender.on_ack(5, 100, resend=False, now=100.0)  # progress: the patience is the first one again
    assert not sender.overdue(109.9)
    assert sender.overdue(110.0)


def test_rows_that_the_outbox_dropped_are_passed_over():
    sender = Sender()
    sender.on_ack(0, 4, resend=False, now=0.0)
    sender.sent(4, 0.0)
    sender.skip_to(50)
    assert (sender.acknowledged, sender.next, sender.granted) == (50, 50, 50)
    assert sender.may_send(100, 10) == 0  # the trainer will grant beyond 50 once it knows


def test_a_new_trainer_begins_where_the_old_one_has_acknowledged():
    sender = Sender(7)
    sender.on_ack(7, 100, resend=False, now=0.0)
    sender.sent(20, 0.0)
    sender.forget_grant()
    assert (sender.next, sender.may_send(100, 10)) == (7, 0)
    sender.begin(12)
    assert (sender.acknowledged, sender.next, sender.granted) == (12, 12, 12)


def test_grants_move_with_what_is_stored():
    receiver = Receiver(8)
    assert receiver.granted == 8
    assert receiver.on_rows(0, 3, 0) == (0, 3)
    assert receiver.granted == 8  # taken in is not stored
    receiver.stored(3)
    assert (receiver.expected, receiver.granted) == (3, 11)


def test_repeated_rows_are_left_out_and_early_ones_come_again():
    receiver = Receiver(100)
    receiver.on_rows(0, 5, 0)
    receiver.stored(5)
    assert receiver.on_rows(3, 5, 0) == (2, 5)  # rows 3 and 4 again, 5 to 7 new
    receiver.stored(8)
    assert receiver.on_rows(2, 3, 0) == (3, 3)  # all again
    assert receiver.on_rows(12, 2, 0) == (0, 0)  # 8 to 11 are missing
    assert (receiver.expected, receiver.repeated, receiver.early, receiver.lost) == (8, 5, 2, 0)
    assert receiver.missing(14)
    assert not receiver.missing(8)


def test_what_the_worker_dropped_is_lost_and_counted_once():
    receiver = Receiver(10, expected=20)
    assert receiver.on_rows(25, 2, 25) == (0, 2)  # 20 to 24 are gone for good
    receiver.stored(27)
    receiver.on_dropped(25)
    receiver.on_dropped(30)
    assert (receiver.expected, receiver.lost) == (30, 5 + 3)


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="give 1 or more"):
        Receiver(0)


def test_a_slow_trainer_bounds_what_is_under_way():
    """The worker makes 10 rows a tick, the trainer stores a batch every other tick: the way stays bounded."""
    sender, receiver = Sender(), Receiver(20)
    way: list[tuple[int, int]] = []
    stored: list[int] = []
    for tick in range(200):
        head = 10 * (tick + 1)
        sender.on_ack(receiver.expected, receiver.granted, resend=False, now=0.0)
        if count := sender.may_send(head, 10):
            way.append((sender.next, count))
            sender.sent(count, 0.0)
        assert sum(count for _, count in way) <= 20
        if tick % 2:
            first, count = way.pop(0)
            begin, end = receiver.on_rows(first, count, 0)
            stored += range(first + begin, first + end)
            receiver.stored(first + end)
    assert stored == list(range(len(stored)))
    assert len(stored) == 1000
    assert (receiver.lost, receiver.repeated, receiver.early) == (0, 0, 0)


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_through_any_loss_repetition_and_reordering_each_row_is_stored_once_and_in_order(seed):
    """30 % of rows and acknowledgements are lost, 20 % doubled, all come in any order; time repairs it."""
    chance, rows = random.Random(seed), 120
    sender, receiver = Sender(), Receiver(32)
    to_trainer: list[tuple[int, int]] = []
    to_worker: list[tuple[int, int, bool]] = []
    stored: list[int] = []
    now = 0.0

    def send(way: list, what: object) -> None:
        way.extend([what] * chance.choice([0, 0, 0, 1, 1, 1, 1, 1, 2, 2]))

    for _ in range(20_000):
        now += 0.1
        if to_worker and chance.random() < 0.8:
            acknowledged, granted, resend = to_worker.pop(chance.randrange(len(to_worker)))
            sender.on_ack(acknowledged, granted, resend=resend, now=now)
        if sender.overdue(now):
            sender.rewind(now)
        if count := sender.may_send(rows, chance.randint(1, 8)):
            send(to_trainer, (sender.next, count))
            sender.sent(count, now)
        if to_trainer and chance.random() < 0.8:
            first, count = to_trainer.pop(chance.randrange(len(to_trainer)))
            begin, end = receiver.on_rows(first, count, 0)
            stored += range(first + begin, first + end)
            receiver.stored(first + end if end else 0)
        send(to_worker, (receiver.expected, receiver.granted, chance.random() < 0.1))
        assert sender.next <= receiver.expected + receiver.window
        if sender.acknowledged == rows:
            break
    assert stored == list(range(rows))
    assert receiver.lost == 0


def test_without_loss_nothing_is_ever_sent_twice():
    sender, receiver = Sender(), Receiver(16)
    for tick in range(1000):
        sender.on_ack(receiver.expected, receiver.granted, resend=False, now=tick)
        assert not sender.overdue(tick)
        if count := sender.may_send(1000, 4):
            begin, end = receiver.on_rows(sender.next, count, 0)
            assert (begin, end) == (0, count)
            receiver.stored(sender.next + end)
            sender.sent(count, tick)
    assert (receiver.expected, sender.resent, receiver.repeated) == (1000, 0, 0)
