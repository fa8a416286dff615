"""What a trainer asks of an algorithm, whatever it is written with. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from tickrate.data.batch import Batch


class Algorithm(Protocol):
    """Learns from batches; acts through the artefacts it writes."""

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Count new observations, ``(rows, *leaf)`` by path, into the input statistics, each exactly once.

        Does nothing for an algorithm that keeps no such statistics.
        """
        ...

    def update(self, batch: Batch) -> Mapping[str, SupportsFloat]:
        """Do one gradient update and return its metrics.

        The metrics may be scalars on a device: ``float()`` waits for the device, so call it rarely.
        """
        ...

    def policy_bytes(self, version: int) -> bytes:
        """Return the present policy as an artefact (`tickrate.artefact`) under this version number."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return a copy of everything that the next update depends on, by name."""
        ...

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put back what `state` returned, all or nothing.

        Raises:
            RunFolderError: if a name is missing or foreign, or a shape differs; nothing is changed then.
        """
        ...
