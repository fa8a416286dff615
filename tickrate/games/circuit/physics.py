"""The car: a dynamic bicycle whose tyres saturate within a friction circle, as a pure function of its state.

Equations: the planar single-track model (Rajamani, Vehicle Dynamics and Control, ch. 2) with the
sine-of-arctangent tyre curve (Pacejka's "magic formula" without curvature term); below walking pace it blends
into the kinematic bicycle, because slip angles mean nothing for a car that stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tickrate.errors import ConfigError


@dataclass(frozen=True)
class CarParameters:
    """What the car can do. Accelerations are forces divided by the mass."""

    grip: float = 13.0
    """Friction limit mu*g of all tyres together, m/s2; 8 (road car in the rain) to 20 (racing slicks)."""
    engine: float = 8.0
    """Acceleration at full throttle, both axles driven, m/s2."""
    brake: float = 12.0
    """Deceleration at full brake, m/s2; stays below `grip`, so that the wheels never lock."""
    drag: float = 0.0086
    """Air drag, m/s2 per (m/s)2; with `engine` and `rolling` it sets the top speed of about 30 m/s."""
    rolling: float = 0.25
    """Rolling resistance, m/s2."""
    axle_m: float = 1.2
    """Distance from the centre of mass to each axle, m (the wheelbase is twice this)."""
    radius_of_gyration_m: float = 1.2
    """Square root of yaw inertia over mass, m; larger turns in more slowly."""
    max_steer_rad: float = 0.42
    """Angle of the front wheels at full steering, rad."""
    steer_rate_rad_s: float = 3.5
    """How fast the wheels can be turned, rad/s."""
    front_stiffness: float = 9.0
    """Slope of the front tyres' curve, 1/rad; below the rear's the car understeers, which is stable."""
    rear_stiffness: float = 11.0
    """Slope of the rear tyres' curve, 1/rad."""
    tyre_shape: float = 1.35
    """Shape of the tyre curve: 1 never falls after the peak, 1.6 falls steeply (drifting is punished)."""
    half_width_m: float = 0.7
    """Half of the car's width, m: how near the axles' middle may come to a wall."""

    def __post_init__(self) -> None:
        if not 0.0 < self.brake < self.grip or not 0.0 < self.engine < self.grip:
            raise ConfigError(
                f"engine {self.engine} and brake {self.brake} m/s2 must lie between 0 and grip {self.grip}"
            )


class Command(NamedTuple):
    """What the driver holds: steer in [-1, 1] (right positive), gas and brake in [0, 1]."""

    steer: float = 0.0
    gas: float = 0.0
    brake: float = 0.0


class CarState(NamedTuple):
    """The car at one instant: metres, radians, seconds; body axes are forward and left."""

    x: float
    y: float
    yaw: float
    """Heading, radians from the x axis, counter-clockwise; not wrapped."""
    forward: float = 0.0
    """Forward speed in m/s, never negative (there is no reverse gear)."""
    sideways: float = 0.0
    """Sideways speed in m/s, left positive."""
    yaw_rate: float = 0.0
    """Turning rate in rad/s, left positive."""
    wheel: float = 0.0
    """Angle of the front wheels in rad, left positive."""

    @property
    def speed(self) -> float:
        """Speed over ground in m/s."""
        return math.hypot(self.forward, self.sideways)


_KINEMATIC_BELOW = 1.0
_DYNAMIC_ABOVE = 3.0

GEARS = (0.0, 6.0, 11.0, 16.5, 22.5)
"""Speed in m/s above which each gear (1 to 5) is used."""
_REDLINE_RPM, _IDLE_RPM = 10_000.0, 1_000.0
_TOP_OF_GEAR = (8.0, 13.0, 19.0, 25.0, 32.0)
_SHIFT_DOWN = 1.0


def advance(state: CarState, command: Command, dt: float, car: CarParameters) -> CarState:
    """Return the state ``dt`` seconds later (0.01 s at most; semi-implicit Euler) under a held command."""
    target = -command.steer * car.max_steer_rad
    most = car.steer_rate_rad_s * dt
    wheel = state.wheel + min(max(target - state.wheel, -most), most)

    v, side, rate, axle = state.forward, state.sideways, state.yaw_rate, car.axle_m
    rolling = v > 0.0 or command.gas > 0.0
    tyres_forward = car.engine * command.gas - (car.brake * command.brake if rolling else 0.0)
    tyres_forward = min(max(tyres_forward, -car.brake), car.engine)
    per_axle = tyres_forward / 2.0
    most_sideways = math.sqrt((car.grip / 2.0) ** 2 - per_axle * per_axle)

    reference = max(v, _KINEMATIC_BELOW)
    front_slip = math.atan2(side + axle * rate, reference) - wheel
    rear_slip = math.atan2(side - axle * rate, reference)
    front = -most_sideways * math.sin(car.tyre_shape * math.atan(car.front_stiffness * front_slip))
    rear = -most_sideways * math.sin(car.tyre_shape * math.atan(car.rear_stiffness * rear_slip))

    cos_wheel, sin_wheel = math.cos(wheel), math.sin(wheel)
    front_forward = per_axle * cos_wheel - front * sin_wheel
    front_side = per_axle * sin_wheel + front * cos_wheel
    resistance = car.drag * v * v + (car.rolling if v > 0.0 else 0.0)

    blend = min(max((v - _KINEMATIC_BELOW) / (_DYNAMIC_ABOVE - _KINEMATIC_BELOW), 0.0), 1.0)
    new_v = max(
        0.0,
        v
        + (front_forward * blend + per_axle * (1.0 - blend) + per_axle - resistance + side * rate * blend)
        * dt,
    )
    new_side = side + (front_side + rear - v * rate) * dt
    new_rate = rate + axle * (front_side - rear) / car.radius_of_gyration_m**2 * dt
    if blend < 1.0:
        kinematic_rate = new_v * math.tan(wheel) / (2.0 * axle)
        new_rate = blend * new_rate + (1.0 - blend) * kinematic_rate
        new_side = blend * new_side + (1.0 - blend) * kinematic_rate * axle

    yaw = state.yaw + new_rate * dt
    cos_yaw, sin_yaw = math.cos(yaw), math.sin(yaw)
    return CarState(
        x=state.x + (new_v * cos_yaw - new_side * sin_yaw) * dt,
        y=state.y + (new_v * sin_yaw + new_side * cos_yaw) * dt,
        yaw=yaw,
        forward=new_v,
        sideways=new_side,
        yaw_rate=new_rate,
        wheel=wheel,
    )


def shift(gear: int, speed: float) -> int:
    """Return the gear (1 to 5) for a speed in m/s; it shifts down 1 m/s below where it shifts up."""
    while gear < len(GEARS) and speed > GEARS[gear] + _SHIFT_DOWN:
        gear += 1
    while gear > 1 and speed < GEARS[gear - 1]:
        gear -= 1
    return gear


def engine_rpm(gear: int, speed: float) -> float:
    """Return the engine's speed in revolutions a minute."""
    return _IDLE_RPM + (_REDLINE_RPM - _IDLE_RPM) * min(1.0, speed / _TOP_OF_GEAR[gear - 1])


def push_back(
    state: CarState, reach: float, depth: float, track_heading: float, side: float, dt: float, first: bool
) -> CarState:
    """Return the state of a car that touches a wall: moved out of it, without speed into it, slower along it.

    Args:
        state: the car, ``depth`` metres inside the wall.
        reach: how far before the centre of mass the car touches, in metres.
        depth: how far to move it, in metres.
        track_heading: direction of the wall in radians.
        side: +1 for the left wall, -1 for the right one.
        dt: length of the physics step in seconds.
        first: whether this contact has just begun; then 40 % of the speed along the wall is lost at once,
            otherwise it fades at 0.5 per second. (A wall that costs nothing is a free corner to a learner.)
    """
    cos_wall, sin_wall = math.cos(track_heading), math.sin(track_heading)
    cos_yaw, sin_yaw = math.cos(state.yaw), math.sin(state.yaw)
    world_x = state.forward * cos_yaw - state.sideways * sin_yaw
    world_y = state.forward * sin_yaw + state.sideways * cos_yaw
    along = (world_x * cos_wall + world_y * sin_wall) * (0.6 if first else 1.0 - 0.5 * dt)
    across = -world_x * sin_wall + world_y * cos_wall
    across = min(across * side, 0.0) * side
    error = math.remainder(track_heading - state.yaw, 2.0 * math.pi)
    if abs(error) > math.pi / 2.0:
        error = math.remainder(error - math.pi, 2.0 * math.pi)
    # The nose is turned along the wall slowly: without a reverse gear the car could never get free otherwise.
    nose_in = side * math.sin(state.yaw - track_heading) > 0.0
    yaw = state.yaw + (min(max(error, -2.0 * dt), 2.0 * dt) if nose_in else 0.0)
    x, y = state.x + reach * (cos_yaw - math.cos(yaw)), state.y + reach * (sin_yaw - math.sin(yaw))
    world_x, world_y = along * cos_wall - across * sin_wall, along * sin_wall + across * cos_wall
    cos_yaw, sin_yaw = math.cos(yaw), math.sin(yaw)
    return state._replace(
        x=x + side * depth * sin_wall,
        y=y - side * depth * cos_wall,
        yaw=yaw,
        forward=max(0.0, world_x * cos_yaw + world_y * sin_yaw),
        sideways=-world_x * sin_yaw + world_y * cos_yaw,
        yaw_rate=0.0 if nose_in else state.yaw_rate,
    )
