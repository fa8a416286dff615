"""Remote inference over the wire: control process, companion, hub and the role ``infer``, also frozen."""

from delivery_kit import RUN
from runtime_kit import CONTRACT, RecordingOutlet, ScriptedEnvironment, policy_bytes

from tickrate import clock
from tickrate.data.schema import Flag
from tickrate.runtime.actors import make_actor
from tickrate.runtime.inference import InferenceServer
from tickrate.runtime.inference_role import InferenceRole
from tickrate.runtime.remote import RemoteConfig
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig
from tickrate.wire import messages
from tickrate.wire.carrier import make_key
from tickrate.wire.memory import MemoryCarrier


def make_server(contract):
    assert contract.schema().digest() == CONTRACT.schema().digest()
    return InferenceServer(lambda weights: make_actor("", contract, weights, 0), contract)


def publish(place, version, action):
    weights = messages.make_weights(
        policy_bytes(version, action), run=RUN, worker="trainer", boot=1, version=version, created=0.0
    )
    place.ear.publish(make_key(RUN, "weights", "trainer"), messages.encode(weights))


def test_the_actions_of_another_machine_reach_the_device_and_a_frozen_one_is_replaced(place, monkeypatch):
    worker = place.worker()
    worker.companion.takes_weights = False
    with MemoryCarrier(place.hub) as carrier:
        role, frozen = InferenceRole(carrier, RUN, make_server), []

        def others(seconds):
            place.pass_time(seconds)
            worker.step()
            if not frozen:
                role.step(0.0)

        monkeypatch.setattr(clock, "sleep", others)
        others(0.01)  # the worker greets, so that the role knows in what it acts
        publish(place, 3, 0.5)
        outlet = RecordingOutlet(stop_after_steps=9)

        def on_step(number):
            place.pass_time(0.05)
            if number == 3:
                frozen.append(True)
            if number == 6:
                frozen.clear()
                publish(place, 4, 0.25)
                others(0.01)

        config = WorkerConfig(
            remote=RemoteConfig(enabled=True, deadline_s=0.03, fallback="default", lost_after_s=60.0),
            evaluation=EvaluationConfig(every_steps=0),
            purpose="expert",
        )
        env = ScriptedEnvironment(100, on_step=on_step)
        ControlLoop(env, CONTRACT.schema(), outlet, config, link=worker.outlet).run()
        assert role.answered >= 6
    versions, flags = outlet.column("policy_version")[:9], outlet.column("flags")[:9]
    assert [round(action, 4) for action in env.actions[:9]] == [0.5] * 4 + [0.0] * 3 + [0.25] * 2
    assert (versions[:4], versions[7:]) == ([3] * 4, [4, 4])
    assert [bool(flag & Flag.FALLBACK) for flag in flags] == [False] * 4 + [True] * 3 + [False] * 2
    assert worker.outlet.weights.version() == worker.outlet.weights.NONE  # it keeps no weights of its own


def test_garbage_and_other_environments_are_answered_by_silence(place):
    with MemoryCarrier(place.hub) as carrier:
        role = InferenceRole(carrier, RUN, make_server)
        for kind in ("hello", "infer", "weights"):
            place.ear.publish(make_key(RUN, kind, "trainer" if kind == "weights" else "a"), b"garbage")
        request = messages.InferRequest(
            run=RUN, worker="a", boot=1, sequence=1, observation=b"no observation"
        )
        place.ear.publish(make_key(RUN, "infer", "a"), messages.encode(request))
        role.step(0.0)
        worker = place.worker("a")
        worker.step()
        role.step(0.0)
        publish(place, 1, 0.5)
        place.ear.publish(make_key(RUN, "infer", "a"), messages.encode(request))
        role.step(0.0)
        assert role.answered == 0
