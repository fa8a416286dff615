"""What a trainer asks of an algorithm, whatever it is written with. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Algorithm(Protocol):
    """Learns from batches; acts through the artefacts it writes."""

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Count new observations, ``(rows, *leaf)`` by path, into the input statistics, each exactly once.

        Does nothing for an algorithm that keeps no such statistics.
        """
        ...

    def update(self, batch: Any) -> Mapping[str, SupportsFloat]:
        """Do one gradient update and return its metrics.

        The batch is a `tickrate.data.batch.Batch`; a `SequenceBatch` for an algorithm that `ReadsSequences`.

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


@dataclass(frozen=True)
class Traits:
    """What a run looks at in an algorithm's settings before it begins; by default nothing special."""

    sequence_length: int = 0
    """Steps of the sequences that an update needs; above 0 ``replay.n_step`` has to be 1. 0: transitions."""
    value_range: tuple[float, float] | None = None
    """Smallest and largest value that can be said, which the first line of a run tells; None: any."""
    explores: bool = True
    """Whether published policies ever try anything but the best; if not, the first line warns."""
    corrects_delays: bool = False
    """Whether each reward has to be traced to the command in force; delays that hide it are refused."""


@runtime_checkable
class HasTraits(Protocol):
    """Settings of an algorithm that say more about it than the usual."""

    @property
    def traits(self) -> Traits:
        """What a run has to know of them."""
        ...


@runtime_checkable
class ReadsSequences(Protocol):
    """An algorithm that may want sequences rather than single transitions (a recurrent one)."""

    @property
    def sequence_length(self) -> int:
        """Steps of the sequences that `Algorithm.update` gets, the same at every update; 0: plain batches."""
        ...


@runtime_checkable
class Prioritises(Protocol):
    """An algorithm that says how much there is left to learn from what it has just seen."""

    def priorities(self) -> NDArray[np.float32]:
        """Return a priority for each transition (or sequence) of the last batch, ``(B,)``, 0 or more.

        Usually the absolute temporal-difference error. Asked once after every update of a run that samples by
        priority; it may wait for the device. Values that are not finite leave the priorities as they were.
        """
        ...


@runtime_checkable
class Guarded(Protocol):
    """An algorithm that keeps bad updates away from its weights and can say so."""

    def faults(self) -> list[str]:
        """Return a sentence for each network kept from a bad step since the last call; it waits."""
        ...


@runtime_checkable
class TellsEffects(Protocol):
    """An algorithm with options whose effect can be seen only once it runs (compilation, precision)."""

    def effects(self) -> list[str]:
        """Return sentences about what such options came to, each once."""
        ...
