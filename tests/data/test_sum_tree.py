"""The sum tree against plain sums and searches, its exactness, and its frequencies at 10^7 weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickrate.data.sum_tree import CHILDREN, SumTree

SIZES = st.sampled_from([1, 2, CHILDREN - 1, CHILDREN, CHILDREN + 1, 255, 256, 257, 5000])


@settings(max_examples=60, deadline=None)
@given(size=SIZES, seed=st.integers(0, 10**6))
def test_sums_and_searches_are_those_of_a_plain_array(size, seed):
    rng = np.random.default_rng(seed)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(5):
        indices = rng.integers(size, size=rng.integers(1, 40))
        weights = rng.integers(0, 5, size=len(indices)).astype(float)  # whole numbers: sums are exact
        tree.set(indices, weights)
        for index, weight in zip(indices, weights, strict=True):
            plain[index] = weight
    np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
    assert tree.total == plain.sum()
    if tree.total:
        points = np.concatenate([np.arange(plain.sum()), np.arange(plain.sum()) + 0.75])
        right = np.searchsorted(np.cumsum(plain), points, side="right")
        np.testing.assert_array_equal(tree.find(points), right)


@settings(max_examples=40, deadline=None)
@given(size=SIZES, seed=st.integers(0, 10**6))
def test_a_weight_of_zero_is_never_found_whatever_the_rounding(size, seed):
    rng = np.random.default_rng(seed)
    tree = SumTree(size)
    weights = np.where(rng.random(size) < 0.2, 10.0 ** rng.uniform(-12, 12, size), 0.0)
    weights[rng.integers(size)] = 1e-6
    tree.set(np.arange(size), weights)
    points = rng.random(300) * tree.total
    points[:4] = [0.0, tree.total, np.nextafter(tree.total, 0.0), 2 * tree.total]
    found = tree.find(points)
    assert (weights[found] > 0).all()


def test_equal_weights_make_an_equal_tree_whatever_was_done_before():
    rng = np.random.default_rng(0)
    weights = rng.random(3000)
    one, two = SumTree(3000), SumTree(3000)
    one.set(np.arange(3000), weights)
    for _ in range(50):
        two.set(rng.integers(3000, size=100), rng.random(100) * 1e9)
    for index in rng.permutation(3000):
        two.set(np.array([index]), weights[index])
    assert one.total == two.total
    for left, right in zip(one._levels, two._levels, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("size", [1, 16, 17, 1000, 100_000])
def test_the_memory_is_what_it_says(size):
    tree = SumTree(size)
    assert sum(level.nbytes for level in tree._levels) == SumTree.bytes_needed(size)
    assert SumTree.bytes_needed(10**7) < 1.07 * 8 * 10**7


@pytest.mark.long
def test_ten_million_weights_are_drawn_in_proportion():
    size, draws = 10_000_000, 4_000_000
    rng = np.random.default_rng(1)
    kind = rng.integers(10, size=size)
    tree = SumTree(size)
    tree.set(np.arange(size), kind.astype(float))
    changed = rng.choice(size, 100_000, replace=False)
    kind[changed] = 9 - kind[changed]
    for part in np.split(changed, 100):
        tree.set(part, kind[part].astype(float))
    total = float(kind.sum())
    assert tree.total == total
    counts = np.zeros(10)
    halves = np.zeros(2)
    for _ in range(draws // 40_000):
        found = tree.find(rng.random(40_000) * total)
        counts += np.bincount(kind[found], minlength=10)
        halves += np.bincount(found >= size // 2, minlength=2)
    share = np.bincount(kind, minlength=10) * np.arange(10) / total
    assert counts[0] == 0
    expected = draws * share[1:]
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 27.9  # 8 degrees of freedom: p = 0.0005
    left = draws * kind[: size // 2].sum() / total
    assert abs(halves[0] - left) < 3.5 * np.sqrt(draws * 0.25)
