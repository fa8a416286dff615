"""Sequences with resets equal separate runs, and the arithmetic is torch's."""

import pytest
import torch
from torch import nn

from tickrate.errors import ConfigError
from tickrate.nn.recurrent import RecurrentLayer


def make(kind):
    generator = torch.Generator().manual_seed(1)
    return RecurrentLayer(kind, 4, 6, generator=generator), torch.randn(3, 8, 4, generator=generator)


def never(x):
    return torch.zeros(x.shape[:2], dtype=torch.bool)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_equals_torch(kind):
    layer, x = make(kind)
    reference = (nn.GRU if kind == "gru" else nn.LSTM)(4, 6, batch_first=True)
    with torch.no_grad():
        reference.weight_ih_l0.copy_(layer.weight.T)
        reference.weight_hh_l0.copy_(layer.state_weight.T)
        reference.bias_ih_l0.copy_(layer.bias)
        reference.bias_hh_l0.copy_(layer.state_bias)
        start = torch.randn(3, layer.state_size, generator=torch.Generator().manual_seed(2))
        theirs = start.unsqueeze(0)
        expected, last = reference(x, theirs if kind == "gru" else tuple(theirs.split(6, 2)))
        outputs, state = layer(x, never(x), start)
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=0)
    last = last if kind == "gru" else torch.cat(last, 2)
    torch.testing.assert_close(state, last.squeeze(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_reset_at_step_three_equals_two_separate_runs(kind):
    layer, x = make(kind)
    reset = never(x)
    reset[:, 3] = True
    start = torch.full((3, layer.state_size), 0.7)
    with torch.no_grad():
        outputs, state = layer(x, reset, start)
        first, _ = layer(x[:, :3], never(x[:, :3]), start)
        second, after = layer(x[:, 3:], never(x[:, 3:]), layer.initial_state(3))
        without, _ = layer(x, never(x), start)
    torch.testing.assert_close(outputs, torch.cat([first, second], 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(state, after, atol=1e-6, rtol=0)
    assert (outputs[:, 3] - without[:, 3]).abs().max() > 1e-2


def test_resets_are_per_row_and_no_gradient_crosses_them():
    layer, x = make("gru")
    x.requires_grad_()
    reset = never(x)
    reset[1, 5] = True
    outputs, _ = layer(x, reset, layer.initial_state(3))
    (gradient,) = torch.autograd.grad(outputs[:, 7].sum(), x)
    assert gradient[1, :5].abs().max() == 0.0
    assert gradient[1, 5:].abs().min() > 0.0
    assert gradient[0, :5].abs().max() > 0.0


def test_the_reset_mask_cannot_be_left_out():
    layer, x = make("gru")
    with pytest.raises(TypeError, match="reset"):
        layer(x, state=layer.initial_state(3))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="'rnn'"):
        RecurrentLayer("rnn", 4, 6, generator=torch.Generator())
