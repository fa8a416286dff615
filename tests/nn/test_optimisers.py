"""FusedOptimiser is torch's Adam, and it can be told on the device to do nothing."""

import torch

from tickrate.nn.optimisers import FusedOptimiser


def pair():
    torch.manual_seed(0)
    start = [torch.randn(3, 4), torch.randn(4)]
    return [[value.clone().requires_grad_() for value in start] for _ in range(2)]


def test_equals_torch_adam_over_many_steps():
    ours, theirs = pair()
    adam = FusedOptimiser(ours, learning_rate=0.01, betas=(0.5, 0.99))
    reference = torch.optim.Adam(theirs, lr=0.01, betas=(0.5, 0.99))
    for step in range(20):
        gradients = [torch.randn_like(value) * (step + 1) for value in ours]
        for value, gradient in zip(theirs, gradients, strict=True):
            value.grad = gradient.clone()
        adam.step(gradients, skip=torch.zeros(()))
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_skipped_step_changes_nothing_and_is_not_counted():
    ours, theirs = pair()
    a, b = FusedOptimiser(ours, learning_rate=0.01), FusedOptimiser(theirs, learning_rate=0.01)
    gradients = [torch.ones_like(value) for value in ours]
    bad = [torch.full_like(value, float("nan")) for value in ours]
    a.step(gradients, skip=torch.zeros(()))
    a.step(bad, skip=torch.ones(()))
    a.step(gradients, skip=torch.zeros(()))
    for _ in range(2):
        b.step(gradients, skip=torch.zeros(()))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
    assert a.tensors("x")["x/steps"].item() == 2.0


def test_its_whole_state_is_there_before_the_first_step():
    ours, _ = pair()
    adam = FusedOptimiser(ours, learning_rate=0.01)
    before = set(adam.tensors("adam"))
    adam.step([torch.ones_like(value) for value in ours], skip=torch.zeros(()))
    assert before == set(adam.tensors("adam"))
    assert before == {"adam/steps", *(f"adam/{i}/{name}" for i in range(2) for name in ("mean", "square"))}
