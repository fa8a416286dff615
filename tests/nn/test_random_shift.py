"""Random shifts equal padding with the edge and cropping, are seeded, and move a stack together."""

import torch
from torch.nn import functional

from tickrate.nn.augment import random_shift


def test_every_result_is_one_of_the_crops_of_the_padded_image():
    images = torch.arange(2 * 3 * 6 * 7).reshape(2, 3, 6, 7).float()
    padded = functional.pad(images, (2, 2, 2, 2), mode="replicate")
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        for i, shifted in enumerate(random_shift(images, generator, pad=2)):
            crops = [
                (row, column)
                for row in range(5)
                for column in range(5)
                if torch.equal(shifted, padded[i, :, row : row + 6, column : column + 7])
            ]
            assert len(crops) == 1
            seen.add((i, *crops[0]))
    assert len(seen) == 2 * 25


def test_same_seed_same_shifts_in_the_images_own_type():
    images = torch.randint(
        0, 256, (8, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    first, second, other = (random_shift(images, torch.Generator().manual_seed(s)) for s in (5, 5, 6))
    assert first.dtype == torch.uint8
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_no_shift_changes_nothing():
    images = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(random_shift(images, torch.Generator(), pad=0), images)
