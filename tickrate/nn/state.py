"""Tensors, optimisers and random state as a flat map of numpy arrays, and back: all or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickrate.errors import RunFolderError

Arrays = dict[str, NDArray[np.generic]]


def module_tensors(module: torch.nn.Module, prefix: str) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name; they are the tensors themselves."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {f"{prefix}/{name}": value.detach() for name, value in named}


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Copy tensors to numpy arrays on the host."""
    return {name: np.array(value.detach().cpu().numpy()) for name, value in tensors.items()}


def check_arrays(
    expected: Mapping[str, NDArray[np.generic]], found: Mapping[str, NDArray[np.generic]]
) -> None:
    """Check that a saved state has exactly the expected names, shapes and dtypes.

    Raises:
        RunFolderError: naming what is missing, unexpected or of another shape; nothing has been changed.
    """
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        raise RunFolderError(
            f"the saved state does not fit: missing {missing[:5]} ({len(missing)}), unexpected {extra[:5]} "
            f"({len(extra)}); it was saved with another configuration or version"
        )
    for name, want in expected.items():
        have = found[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            raise RunFolderError(
                f"saved state {name!r} is {have.dtype}{list(have.shape)}, "
                f"expected {want.dtype}{list(want.shape)}"
            )


@torch.no_grad()
def load_arrays(tensors: Mapping[str, Tensor], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy arrays into tensors of the same names; `check_arrays` has to come first."""
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(np.array(arrays[name])))
