"""A name speaks only for itself, whatever stands in its messages."""

import pytest

from tickrate.wire import messages
from tickrate.wire.address import listen, speaks_for_itself
from tickrate.wire.carrier import make_key
from tickrate.wire.memory import MemoryCarrier, MemoryHub


def status(run="r", worker="a"):
    return messages.encode(messages.Status(run=run, worker=worker, boot=1, role="worker", state="acting"))


def command(target="worker"):
    return messages.encode(
        messages.Command(run="r", worker="launcher", boot=1, target=target, action="pause")
    )


@pytest.mark.parametrize(
    ("key", "payload", "fits"),
    [
        ("tickrate/r/status/a", status(), True),
        ("tickrate/r/status/b", status(), False),
        ("tickrate/other/status/a", status(), False),
        ("tickrate/r/command/worker", command(), True),
        ("tickrate/r/command/a", command(), False),
        ("tickrate/r/status/a", b"no message", True),  # the decoder's business
        ("tickrate/r/status/a", b"", True),
        ("tickrate/r/status/a", b"TKR\x01" + status()[4:], True),
        ("tickrate/r/status/b", b"TKR\x01" + status()[4:], False),
    ],
)
def test_a_message_has_to_fit_its_key(key, payload, fits):
    assert speaks_for_itself(key, payload) is fits


def test_a_message_in_anothers_name_never_reaches_the_reader():
    with MemoryHub() as hub, MemoryCarrier(hub) as carrier:
        box = listen(carrier, make_key("r", "status", "*"), capacity=10)
        carrier.publish("tickrate/r/status/evil", status(worker="a"))
        carrier.publish("tickrate/r/status/a", status(worker="a"))
        assert box.drain(10) == [status(worker="a")]
        assert box.refused == 1
