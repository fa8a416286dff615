"""Every way out of an episode or a program ends with the safe action, if the device was commanded at all."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import gymnasium
import numpy as np
import pytest

from tickrate.testing import End, FakeClock, FakeInterface, Raise


def act(value=0.5):
    return np.array([value], np.float32)


SAFE = act(-1.0)


def sent(device):
    return [float(value[0]) for value in device.values]


def test_make_and_close_alone_send_nothing_and_reset_nothing(bench):
    env = gymnasium.make("tickrate/RealTime-v0", config={"interface": FakeInterface}, clock=FakeClock())
    device = env.unwrapped.interface
    env.close()
    assert (device.commands, device.reset_times, device.closed) == ([], [], 1)


def leave_terminated(b):
    b.env.step(act())


def leave_by_reset(b):
    b.device.reset = lambda **_: pytest.fail("stop") if b.device.values[-1] != -1.0 else ((SAFE,), {})
    b.env.reset()


def leave_by_close(b):
    b.env.close()


def leave_by_exception(b):
    with pytest.raises(OSError, match="gone"):
        b.env.step(act())


def leave_by_ctrl_c(b):
    with pytest.raises(KeyboardInterrupt):
        b.env.step(act())


@pytest.mark.parametrize(
    ("way", "leave", "script", "config"),
    [
        ("terminated", leave_terminated, {2: End()}, {}),
        ("truncated", leave_terminated, {}, {"ep_max_length": 2}),
        ("close", leave_by_close, {}, {}),
        ("exception", leave_by_exception, {2: Raise(OSError("gone"))}, {}),
        ("signal", leave_by_ctrl_c, {2: Raise(KeyboardInterrupt())}, {}),
        ("reset", leave_by_reset, {}, {}),
    ],
)
def test_the_safe_action_is_sent_on_each_way_out_unless_that_way_is_taken_off(
    bench, way, leave, script, config
):
    b = bench(fake={"on_capture": script}, safe_action=SAFE, **config)
    b.env.reset()
    b.env.step(act())
    leave(b)
    assert -1.0 in sent(b.device)[2:]
    others = tuple(w for w in b.env.config.safe_on if w != way)
    b = bench(fake={"on_capture": script}, safe_action=SAFE, safe_on=others, **config)
    b.env.reset()
    b.env.step(act())
    if way != "reset":
        leave(b)
        assert -1.0 not in sent(b.device)
    else:
        b.env.reset()
        assert sent(b.device) == [0.0, 0.5, 0.0]


def test_the_default_safe_action_is_the_interfaces_default(bench):
    b = bench()
    b.env.reset()
    b.env.step(act())
    b.env.close()
    assert sent(b.device) == [0.0, 0.5, 0.0]


def test_a_safe_device_is_not_made_safe_again(bench):
    b = bench(ep_max_length=1, safe_action=SAFE)
    b.env.reset()
    b.env.step(act())
    b.env.close()
    b.env.close()
    assert sent(b.device) == [0.0, -1.0]
    assert b.device.closed == 1


def test_last_act_on_reset_keeps_the_flow_but_other_ways_out_are_safe(bench):
    b = bench(ep_max_length=1, safe_action=SAFE, last_act_on_reset=True)
    b.env.reset()
    b.env.step(act())
    b.env.reset()
    assert sent(b.device) == [0.0, 0.5]
    b.env.close()
    assert sent(b.device) == [0.0, 0.5, -1.0]


def test_a_lock_step_world_waits_and_is_made_safe_only_when_left(bench):
    b = bench(ep_max_length=1, safe_action=SAFE, real_time=False)
    b.env.reset()
    b.env.step(act())
    b.env.reset()
    assert sent(b.device) == [0.5]
    b.env.close()
    assert sent(b.device) == [0.5, -1.0]


def test_stop_device_sends_the_safe_action_at_once_and_rewrites_history(bench):
    b = bench(safe_action=SAFE, act_buf_len=2)
    b.env.stop_device()
    assert sent(b.device) == []
    b.env.reset()
    b.env.step(act(0.5))
    b.env.stop_device()
    assert sent(b.device) == [0.0, 0.5, -1.0]
    observation, *_ = b.env.step(act(0.25))
    assert [float(a[0]) for a in observation[1:]] == [-1.0, 0.25]


def test_an_environment_that_is_dropped_makes_its_device_safe():
    from tickrate.realtime import RealTimeEnv

    env = RealTimeEnv({"interface": FakeInterface, "safe_action": SAFE}, clock=FakeClock())
    env.reset()
    device = env.interface
    del env
    assert sent(device) == [0.0, -1.0]


PROGRAM = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from tickrate.realtime import RealTimeEnv
    from tickrate.testing import FakeInterface

    class Printing(FakeInterface):
        def send_control(self, control):
            print(float(control[0]), flush=True)

    env = RealTimeEnv({"interface": Printing, "safe_action": np.array([-1.0], np.float32)})
    env.reset()
    for k in range(10_000):
        env.step(np.array([0.5], np.float32))
        if k == 3 and sys.argv[1] == "exit":
            sys.exit(0)
        if k == 3 and sys.argv[1] == "error":
            raise ValueError("in the policy, between two steps")
    """
)


@pytest.mark.parametrize("way", ["exit", "error", "SIGINT", "SIGTERM"])
def test_a_program_that_ends_leaves_the_device_safe(way):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        for line in process.stdout:
            if line.strip() == "0.5":
                break
        if way.startswith("SIG"):
            process.send_signal(getattr(signal, way))
        rest = process.stdout.read().split()
        code = process.wait(20.0)
    assert rest[-1] == "-1.0"
    assert rest.count("-1.0") == 1
    assert (code == 0) == (way == "exit")
    if way == "SIGTERM" and os.name == "posix":
        assert code in (-signal.SIGTERM, 128 + signal.SIGTERM)  # the second if it came during the print


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM cannot be handled on Windows")
def test_a_sigterm_in_the_middle_of_a_call_makes_the_device_safe_when_the_call_is_left():
    """A buffered stream refuses to be written to from a handler that interrupts a write to it."""
    program = """
        import io, os, signal
        import numpy as np
        from tickrate.realtime import RealTimeEnv
        from tickrate.testing import FakeInterface

        class Wire(io.RawIOBase):
            def writable(self):
                return True

            def write(self, data):
                os.write(1, data)
                if bytes(data) == b"0.5\\n":
                    os.kill(os.getpid(), signal.SIGTERM)
                return len(data)

        class Streaming(FakeInterface):
            stream = io.BufferedWriter(Wire())

            def send_control(self, control):
                self.stream.write(f"{float(control[0])}\\n".encode())
                self.stream.flush()

        env = RealTimeEnv({"interface": Streaming, "safe_action": np.array([-1.0], np.float32)})
        env.reset()
        for _ in range(10_000):
            env.step(np.array([0.5], np.float32))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30.0
    )
    assert done.stdout.split()[-1] == "-1.0"
    assert done.returncode == 128 + signal.SIGTERM


def test_somebody_elses_sigterm_handler_is_left_alone(bench):
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        b = bench()
        b.env.reset()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_in_the_middle_of_a_wait_is_prompt(bench):
    b = bench(clock=None, time_step_duration=20.0, start_obs_capture=20.0, safe_action=SAFE)
    b.env.reset()
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        b.env.step(act())
    timer.join()
    assert time.monotonic() - begin < 5.0
    assert sent(b.device) == [0.0, -1.0]


def test_sigterm_at_any_moment_of_an_exit_hangs_nothing():
    """A signal handler that enters the machinery in the middle of itself must not wait for itself."""
    for delay in (0.0, 0.002, 0.005, 0.01):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "exit"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with process:
            for line in process.stdout:
                if line.strip() == "-1.0":  # the exit has begun
                    break
            time.sleep(delay)
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            assert process.wait(10.0) in (0, -signal.SIGTERM)


def test_a_handler_may_enter_the_watchdog_in_the_middle_of_itself(bench):
    """SIGUSR1 arrives a few thousand times while the machinery works; the handler uses all of it."""
    b = bench(clock=None, safe_action=SAFE, time_step_duration=0.001, start_obs_capture=0.001)
    b.env.reset()
    before = signal.signal(signal.SIGUSR1, lambda *_: b.env.stop_device())
    stop = threading.Event()

    def pester():
        while not stop.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            stop.wait(2e-4)

    thread = threading.Thread(target=pester)
    thread.start()
    try:
        for _ in range(200):
            b.env.step(act())
            b.env.stop_device()
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert -1.0 in sent(b.device)
