"""Saved tensors come back exactly, or not at all."""

import numpy as np
import pytest
import torch

from tickrate.errors import RunFolderError
from tickrate.nn.state import check_arrays, load_arrays, module_tensors, to_arrays


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
