"""Which leaf is read how, where each feature lies, and what is refused."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tickrate.errors import ConfigError
from tickrate.nn.augment import random_shift
from tickrate.nn.encoders import ConvolutionEncoder, EncoderConfig, ObservationEncoder, image_axes


def encoder(observation_spaces, **options):
    return ObservationEncoder(
        EncoderConfig(**options), observation_spaces, generator=torch.Generator().manual_seed(0)
    )


def picture(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("shape", "axes", "read"),
    [
        ((64, 80), (0, 1), (1, 64, 80)),
        ((3, 64, 80), (0, 1, 2), (3, 64, 80)),
        ((12, 84, 84), (0, 1, 2), (12, 84, 84)),
        ((64, 80, 3), (2, 0, 1), (3, 64, 80)),
        ((4, 4, 4), (0, 1, 2), (4, 4, 4)),
        ((4, 3, 64, 80), (0, 1, 2, 3), (12, 64, 80)),
        ((4, 64, 80, 3), (0, 3, 1, 2), (12, 64, 80)),
    ],
)
def test_the_rule_for_images(shape, axes, read):
    assert image_axes(shape) == (axes[-2:] if len(shape) == 2 else axes, read)


def test_images_with_too_many_axes_are_refused():
    with pytest.raises(ConfigError, match=r"\[2, 2, 2, 3, 3\]"):
        image_axes((2, 2, 2, 3, 3))


def test_channels_come_first_and_pixels_lie_between_minus_and_plus_a_half():
    one = encoder({"eye": picture(64, 70, 3)})
    leaf = torch.zeros(2, 64, 70, 3, dtype=torch.uint8)
    leaf[1, 5, 6, 2] = 255
    x = one.picture("eye", leaf)
    assert x.shape == (2, 3, 64, 70)
    assert x[1, 2, 5, 6] == pytest.approx(0.5)
    assert x.sum() == pytest.approx(-0.5 * (x.numel() - 1) + 0.5)


@pytest.mark.parametrize(("edge", "remain"), [(84, 7), (64, 4)])
def test_the_default_suits_the_usual_sizes(edge, remain):
    one = encoder({"eye": picture(3, edge, edge)})
    assert one.encoders[0].flat == 64 * remain * remain
    assert one({"eye": torch.zeros(2, 3, edge, edge, dtype=torch.uint8)}).shape == (2, 64)


def test_drqs_layers_on_84_pixels():
    one = ConvolutionEncoder((9, 84, 84), (32,) * 4, (3,) * 4, (2, 1, 1, 1), 50, generator=torch.Generator())
    assert one.flat == 32 * 35 * 35  # as in the paper's code


def test_vectors_come_first_flattened_in_the_groups_order():
    leaves = {
        "b": spaces.Box(-1, 1, (2, 2)),
        "eye": picture(40, 40),
        "a": spaces.MultiBinary(2),
        "c": spaces.Box(-1, 1, ()),
    }
    one = encoder(leaves)
    assert (one.vector_paths, one.vector_size, one.features) == (("b", "a", "c"), 7, 7 + 64)
    observation = {
        "a": torch.tensor([[1, 0]], dtype=torch.int8),
        "b": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]),
        "c": torch.tensor([9.0]),
        "eye": torch.zeros(1, 40, 40, dtype=torch.uint8),
    }
    out = one(observation)
    assert out.dtype == torch.float32
    assert out[0, :7].tolist() == [1, 2, 3, 4, 1, 0, 9]


def test_weights_come_from_the_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second = encoder({"eye": picture(64, 64)}), encoder({"eye": picture(64, 64)})
    assert torch.equal(torch.get_rng_state(), before)
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert first.encoders[0].convolutions[0].weight.abs().max().item() == pytest.approx(1 / 8, rel=0.01)


@pytest.mark.parametrize(
    ("leaves", "options", "words"),
    [
        ({"eye": picture(10, 10)}, {}, "'eye': a kernel of 4 does not fit into the [1, 1]"),
        ({"scan": spaces.Box(0, 1, (4,))}, {"history_leaves": ("scan",)}, "'scan' of shape [4]"),
        ({"eye": picture(64, 64)}, {"history_leaves": ("eye",)}, "is no image"),
        ({"scan": spaces.Box(0, 1, (4, 19))}, {"history_leaves": ("scan",)}, "leaf 'scan': a kernel of 3"),
        ({"gear": spaces.Discrete(3)}, {}, "'gear' is a Discrete"),
    ],
)
def test_leaves_that_cannot_be_read_are_named(leaves, options, words):
    with pytest.raises(ConfigError) as error:
        encoder(leaves, **options)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"image_channels": (32,)},
        {"image_channels": (), "image_kernels": (), "image_strides": ()},
        {"image_strides": (4, 0, 1)},
        {"history_features": 0},
        {"history_along": "beams"},
    ],
)
def test_layers_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        EncoderConfig(**options)


def test_augmentation_is_for_images_alone():
    leaves = {"eye": picture(40, 40, 3), "scan": spaces.Box(-1, 1, (6, 4)), "speed": spaces.Box(-1, 1, (2,))}
    one = encoder(leaves, history_leaves=("scan",))
    generator = torch.Generator().manual_seed(3)
    observation = {
        "eye": torch.randint(0, 256, (5, 40, 40, 3), dtype=torch.uint8, generator=generator),
        "scan": torch.randn(5, 6, 4, generator=generator),
        "speed": torch.randn(5, 2, generator=generator),
    }
    given = []

    def augment(images):
        given.append(images.shape)
        return random_shift(images, torch.Generator().manual_seed(4))

    plain, shifted = one(observation), one(observation, augment)
    assert given == [(5, 3, 40, 40)]
    assert torch.equal(shifted[:, :2], plain[:, :2])
    assert torch.equal(shifted[:, 66:], plain[:, 66:])
    expected = one.encoders[0](augment(one.picture("eye", observation["eye"])))
    torch.testing.assert_close(shifted[:, 2:66], expected)
    assert not torch.allclose(shifted[:, 2:66], plain[:, 2:66])
