"""torch.compile and bfloat16 as options of an algorithm; counts what came of it, so that a run can say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import torch
import torch._dynamo
from torch._dynamo.utils import counters

F = TypeVar("F", bound=Callable[..., Any])


class Acceleration:
    """Compiles functions, counts graphs and breaks, and says in which precision networks are computed.

    Args:
        mode: ``off`` leaves functions as they are; else a mode of `torch.compile`.
        mixed_precision: whether networks are computed in bfloat16.
        device: where.

    Attributes:
        graphs: graphs compiled so far, recompilations included.
    """

    def __init__(
        self,
        mode: Literal["off", "default", "reduce-overhead"],
        mixed_precision: bool,
        device: torch.device,
    ) -> None:
        self._mode, self._mixed, self._device = mode, mixed_precision, device
        self.graphs = 0
        self._breaks_before = self._all_breaks()
        self._told = mode == "off" and not mixed_precision

    def compiled(self, function: F) -> F:
        """Return the function compiled, or as it is."""
        if self._mode == "off":
            return function
        return cast(F, torch.compile(function, backend=self._backend, dynamic=False))

    def precision(self) -> torch.autocast:
        """Return the context in which networks are computed."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._mixed)

    def effects(self, computed_in: torch.dtype) -> list[str]:
        """Return a sentence, once, about what became of the options; none if they are off.

        Args:
            computed_in: what the layers of the networks were computed in, by their own account.
        """
        if self._told:
            return []
        self._told = True
        compiled = f"{self.graphs} graphs compiled, {self.breaks} breaks"
        return [
            f"compile {self._mode}: {compiled}; networks computed in {computed_in}, losses in torch.float32"
        ]

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
