"""Saved tensors come back exactly, or not at all."""

import numpy as np
import pytest
import torch

from tickrate.errors import RunFolderError
from tickrate.nn.state import adam_tensors, check_arrays, load_arrays, module_tensors, prepare_adam, to_arrays


def test_adam_has_its_whole_state_before_the_first_step():
    layer = torch.nn.Linear(2, 1)
    optimiser = torch.optim.Adam(layer.parameters(), fused=True)
    prepare_adam(optimiser)
    before = to_arrays(adam_tensors(optimiser, "adam"))
    layer(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    after = to_arrays(adam_tensors(optimiser, "adam"))
    assert (
        before.keys()
        == after.keys()
        == {f"adam/{i}/{name}" for i in range(2) for name in ("step", "exp_avg", "exp_avg_sq")}
    )
    assert before["adam/0/step"] == 0.0
    assert after["adam/0/step"] == 1.0


def test_prepared_adam_steps_like_a_fresh_one():
    torch.manual_seed(0)
    a, b = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    b.load_state_dict(a.state_dict())
    ours, theirs = torch.optim.Adam(a.parameters(), fused=True), torch.optim.Adam(b.parameters(), fused=True)
    prepare_adam(ours)
    for _ in range(3):
        for layer, optimiser in ((a, ours), (b, theirs)):
            optimiser.zero_grad()
            layer(torch.ones(1, 3)).square().sum().backward()
            optimiser.step()
    assert torch.equal(a.weight, b.weight)


def test_arrays_are_copies_and_come_back():
    layer = torch.nn.Linear(2, 2)
    arrays = to_arrays(module_tensors(layer, "net"))
    with torch.no_grad():
        layer.weight.zero_()
    assert arrays["net/weight"].any()
    load_arrays(module_tensors(layer, "net"), arrays)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), arrays["net/weight"])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"a": np.zeros(2, np.float32)}, "missing ['b']"),
        ({"a": np.zeros(2, np.float32), "b": np.int64(0), "c": np.zeros(1)}, "unexpected ['c']"),
        ({"a": np.zeros(3, np.float32), "b": np.int64(0)}, "'a' is float32[3], expected float32[2]"),
        ({"a": np.zeros(2, np.float64), "b": np.int64(0)}, "'a' is float64[2], expected float32[2]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(found, words):
    with pytest.raises(RunFolderError) as error:
        check_arrays({"a": np.zeros(2, np.float32), "b": np.int64(0)}, found)
    assert words in str(error.value)
