"""The update-to-data ratio is kept exactly, and a debt does not grow without limit."""

import pytest

from tickrate.runtime.limiter import UpdateLimiter


def spend(limiter):
    made = 0
    while limiter.may_update():
        limiter.count_update()
        made += 1
    return made


@pytest.mark.parametrize(
    ("ratio", "steps", "updates"), [(1.0, 100, 90), (0.25, 100, 22), (3.0, 100, 270), (0.3, 20, 3)]
)
def test_ratio_is_kept_exactly(ratio, steps, updates):
    limiter = UpdateLimiter(ratio, start_steps=10)
    made = 0
    for _ in range(steps):
        limiter.add_steps(1)
        made += spend(limiter)
    assert made == limiter.updates == updates == int((steps - 10) * ratio)


def test_nothing_before_the_warm_up_is_over():
    limiter = UpdateLimiter(2.0, start_steps=5)
    limiter.add_steps(5)
    assert not limiter.may_update()
    assert limiter.ratio == 0.0
    limiter.add_steps(1)
    assert spend(limiter) == 2


def test_debt_beyond_the_backlog_is_forgiven_and_counted():
    limiter = UpdateLimiter(2.0, start_steps=0, backlog_steps=10)
    limiter.add_steps(50)
    assert limiter.forgiven == 2.0 * (50 - 10)
    assert spend(limiter) == 20
    limiter.add_steps(1)  # from here on the ratio is kept again, the old debt is gone
    assert spend(limiter) == 2
    assert limiter.ratio == pytest.approx(22 / 51)


def test_steps_in_one_batch_or_one_by_one_are_the_same():
    one, many = UpdateLimiter(0.5, 3), UpdateLimiter(0.5, 3)
    one.add_steps(20)
    for _ in range(20):
        many.add_steps(1)
    assert spend(one) == spend(many) == 8
