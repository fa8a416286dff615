"""Compiles functions with torch, and counts what came of it, so that a run can say whether it acted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import torch
import torch._dynamo
from torch._dynamo.utils import counters

F = TypeVar("F", bound=Callable[..., Any])


class Compiler:
    """Compiles functions and counts graphs and breaks.

    Args:
        mode: ``off`` leaves functions as they are; else a mode of `torch.compile`.

    Attributes:
        graphs: graphs compiled so far, recompilations included.
    """

    def __init__(self, mode: Literal["off", "default", "reduce-overhead"]) -> None:
        self._mode = mode
        self.graphs = 0
        self._breaks_before = self._all_breaks()

    def __call__(self, function: F) -> F:
        """Return the function compiled, or as it is."""
        if self._mode == "off":
            return function
        return cast(F, torch.compile(function, backend=self._backend, dynamic=False))

    def _backend(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        inductor = torch._dynamo.lookup_backend("inductor")
        options = torch._inductor.list_mode_options().get(self._mode, {})
        with torch._inductor.config.patch(options):
            made: Callable[..., Any] = inductor(module, inputs)
        return made

    @property
    def breaks(self) -> int:
        """Places where torch had to leave a compiled graph, since this object was made."""
        return self._all_breaks() - self._breaks_before

    @staticmethod
    def _all_breaks() -> int:
        return sum(counters["graph_break"].values())
