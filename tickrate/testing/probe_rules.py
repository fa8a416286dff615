"""The rules of the probe environments: what is observed, what is rewarded, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tickrate.trees import Array


@dataclass(frozen=True)
class Moment:
    """What a probe's rule may look at when it rewards an action."""

    step: int
    """Number of the step within the episode, from 0."""
    observation: float
    """First number of the observation on which the action was chosen; of an image the cue."""
    action: Any
    """The action: a float, a category, or a tuple of categories."""
    last_action: Any
    """The action before it."""
    cue: float
    """-1 or +1, drawn at each reset, whether it is observed or not."""
    miss: float
    """How far from the target the action will bring the position, once it has taken effect (flight alone)."""


@dataclass(frozen=True)
class Probe:
    """The rule of one probe environment."""

    horizon: int
    """Steps in an episode."""
    reward: Callable[[Moment], float]
    """The reward of a step."""
    value: Callable[[Array, float], float] | None
    """The value of an observation for a discount, under every policy; None if it depends on it."""
    best_action: Callable[[Any], Any] | None = None
    """The best action on an observation; None where actions do not matter or it cannot be known."""
    truncates: bool = False
    """How episodes end: False terminated, True truncated."""
    observes: Literal["nothing", "step", "sign", "cue", "image", "flight"] = "nothing"
    """What the observation is: always 0, the number of the step, the cue (-1 or +1, drawn at each reset), the
    cue in the first observation and 0 then, an image of it, or position and target."""
    shows_last_action: bool = False
    """True: the observation ends with the last action; of flight, with all that have no effect yet."""
    actions: Literal["box", "category", "categories"] = "box"
    """What the actions are: a number, one of 1, 2 and 3, or a pair of categories, of 2 and of 3."""
    remembers: bool = False
    """True: ``best_action`` is the best in every step when asked with the episode's first observation."""


def _flip(moment: Moment) -> float:
    """Half the distance to the last action: 1 for a jump from one bound to the other."""
    return float(abs(moment.action - moment.last_action)) / 2.0


def _half_cue(moment: Moment) -> float:
    return 1.0 - float(moment.action - 0.5 * moment.cue) ** 2


def _hit(moment: Moment) -> float:
    return 1.0 - moment.miss


def _following(category: int) -> int:
    return category % 3 + 1


def _answers(cue: float) -> tuple[int, int]:
    return (1, 0) if cue > 0.0 else (0, 2)


def _brighter_half(image: Array) -> float:
    """Return +1 if the right half of an image (1, side, side) is the brighter one, else -1."""
    left, right = np.split(image[0].astype(np.int64), 2, axis=1)
    return 1.0 if right.sum() > left.sum() else -1.0


PROBES: dict[str, Probe] = {
    "constant_reward": Probe(horizon=1, reward=lambda m: 1.0, value=lambda o, gamma: 1.0),
    "observed_reward": Probe(
        horizon=1,
        reward=lambda m: m.observation,
        value=lambda o, gamma: float(o[0]),
        observes="sign",
    ),
    "discount": Probe(
        horizon=2,
        reward=lambda m: float(m.step),
        value=lambda o, gamma: gamma if o[0] == 0.0 else 1.0,
        observes="step",
    ),
    "time_limit": Probe(
        horizon=5,
        reward=lambda m: 1.0,
        value=lambda o, gamma: 1.0 / (1.0 - gamma),
        truncates=True,
    ),
    "chosen_action": Probe(
        horizon=1,
        reward=lambda m: 1.0 - (m.action - 0.5) ** 2,
        value=None,
        best_action=lambda o: 0.5,
    ),
    "observed_action": Probe(
        horizon=1,
        reward=_half_cue,
        value=None,
        best_action=lambda o: 0.5 * float(o[0]),
        observes="sign",
    ),
    "hidden_memory": Probe(horizon=16, reward=_flip, value=None, truncates=True),
    "action_buffer": Probe(
        horizon=16,
        reward=_flip,
        value=None,
        best_action=lambda o: -1.0 if o[-1] > 0.0 else 1.0,
        truncates=True,
        shows_last_action=True,
    ),
    "actions_in_flight": Probe(
        horizon=16,
        reward=_hit,
        value=None,
        best_action=lambda o: float(o[1] - o[0] - o[2:].sum()),
        truncates=True,
        observes="flight",
        shows_last_action=True,
    ),
    "hidden_in_flight": Probe(horizon=16, reward=_hit, value=None, truncates=True, observes="flight"),
    "chosen_category": Probe(
        horizon=1,
        reward=lambda m: float(m.action == 3),
        value=None,
        best_action=lambda o: 3,
        actions="category",
    ),
    "observed_category": Probe(
        horizon=1,
        reward=lambda m: float(m.action == 2 + m.cue),
        value=None,
        best_action=lambda o: int(2 + o[0]),
        observes="sign",
        actions="category",
    ),
    "category_buffer": Probe(
        horizon=16,
        reward=lambda m: float(m.action == _following(m.last_action)),
        value=None,
        best_action=lambda o: _following(int(o["actions"][-1])),
        truncates=True,
        shows_last_action=True,
        actions="category",
    ),
    "observed_categories": Probe(
        horizon=1,
        reward=lambda m: float(np.mean(np.equal(m.action, _answers(m.cue)))),
        value=None,
        best_action=lambda o: _answers(float(o[0])),
        observes="sign",
        actions="categories",
    ),
    "image": Probe(
        horizon=1,
        reward=_half_cue,
        value=None,
        best_action=lambda o: 0.5 * _brighter_half(o),
        observes="image",
    ),
    "memory": Probe(
        horizon=4,
        reward=_half_cue,
        value=None,
        best_action=lambda o: 0.5 * float(o[0]),
        truncates=True,
        observes="cue",
        remembers=True,
    ),
}
"""The probes by name, from the easiest to the hardest of each kind of action."""
