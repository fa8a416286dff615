"""Drives an environment with a saved policy and reports each episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from tickrate import registry
from tickrate.errors import ConfigError
from tickrate.policy import Policy
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import Environment
from tickrate.runtime.episode import EpisodeSummary, Orders
from tickrate.runtime.recorder import Row
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig


def find_policy(path: Path) -> Path:
    """Return the policy file that a path means.

    That is the path itself, the best (else the latest) policy of a run folder, or, for the name of an
    environment of the package, the trained policy that ships with it.

    Raises:
        ConfigError: if there is none.
    """
    if path.is_file():
        return path
    if not path.exists() and (shipped := shipped_policy(str(path))) is not None:
        return shipped
    for name in ("best.policy", "latest.policy"):
        if (path / name).is_file():
            return path / name
    raise ConfigError(
        f"{path} is neither a policy file nor a run folder with best.policy or latest.policy in it"
    )


def shipped_policy(environment: str) -> Path | None:
    """Return the trained policy that ships with an environment of the package, None if there is none."""
    entry = registry.ENVIRONMENTS.get(environment)
    if entry is None or not entry.policy:
        return None
    package, _, name = entry.policy.partition(":")
    return Path(str(resources.files(package).joinpath(name)))


class _PlayOutlet:
    """Hands one fixed policy, or None, to the control loop; playing records nothing."""

    def __init__(self, weights: bytes | None, interrupted: Callable[[], bool]) -> None:
        self._weights = weights
        self._interrupted = interrupted

    def put_row(self, row: Row) -> None:
        """Nothing is recorded."""

    def put_summary(self, summary: EpisodeSummary) -> None:
        """The caller gets each summary from `ControlLoop.play` itself."""

    def put_state(self, state: str) -> None:
        """Nobody watches a state here: each episode is reported as it ends."""

    def newest_weights(self, known_version: int) -> tuple[int, bytes] | None:
        return (1, self._weights) if known_version == 0 and self._weights is not None else None

    def orders(self) -> Orders:
        return Orders(shutdown=self._interrupted())


def drive(
    environment: Environment,
    policy: Policy | Path,
    episodes: int,
    *,
    deterministic: bool,
    seed: int,
    interrupted: Callable[[], bool],
) -> Iterator[EpisodeSummary]:
    """Drive ``episodes`` episodes; yield the summary of each. The device is safe afterwards.

    Args:
        environment: what is driven.
        policy: who drives: a policy, or the path of an ONNX file that holds one.
        episodes: how many.
        deterministic: without exploration.
        seed: of the first reset and of the exploration.
        interrupted: whether to stop now.

    Raises:
        PolicyMismatch: before anything is driven, if the policy was made for another environment.
        DeviceLost: if the device stays away.
    """
    schema = EnvironmentContract.of(environment).schema()
    if isinstance(policy, Path):
        outlet = _PlayOutlet(None, interrupted)
        config = WorkerConfig(purpose="expert", actor=str(policy))
    else:
        outlet = _PlayOutlet(policy.to_bytes(), interrupted)
        config = WorkerConfig(evaluation=EvaluationConfig(every_steps=0))
    loop = ControlLoop(environment, schema, outlet, config, seed=seed)
    yield from loop.play(episodes, deterministic=deterministic)
