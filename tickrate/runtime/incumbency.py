"""One trainer a run: a second one is told who serves it, and ends."""

from __future__ import annotations

import logging

from tickrate import __version__, clock
from tickrate.errors import Refused, WireError
from tickrate.runtime.courier import TRAINER, here
from tickrate.runtime.peers import refusal_to
from tickrate.wire import messages
from tickrate.wire.address import listen
from tickrate.wire.carrier import Carrier, make_key
from tickrate.wire.mailbox import Mailbox

_log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""A trainer that finds another one present waits so long for its objection before it takes over."""
GREET_EVERY_S = 0.5
HELLO_EVERY_S = 2.0
"""A trainer that serves greets so often: another one that it could not see when it came hears of it."""
ROSTER_S = 0.3
"""Seconds to wait at the start for the hub's word on who is present."""
STALL_S = 5.0
"""After a pause of our own that long (a suspended machine), another trainer may serve: ask again ..."""
BACK_S = 1.5
"""... and wait so long for its objection. Most such pauses are our own long work, and nobody objects."""


class Incumbency:
    """Announces this trainer, objects to others, and hears their objections.

    Args:
        carrier: the way to the hub.
        run: name of the run.
        boot: this trainer's boot.
        life: the run's life.
    """

    def __init__(self, carrier: Carrier, run: str, boot: int, life: int) -> None:
        self._carrier, self._run, self._boot, self._life = carrier, run, boot, life
        present = make_key(run, "present", TRAINER)
        another = carrier.watch(present).wait_for(present, ROSTER_S)
        self._refusals: Mailbox = listen(carrier, make_key(run, "refusal", TRAINER), capacity=10)
        self._looked_at = clock.now()
        self._settled_at = clock.now() + (SETTLE_S if another else 0.0)
        self._next_hello = 0.0
        self._rival: int | None = None

    def announce(self) -> None:
        """Be present; to be called once everything is subscribed to, so that whoever greets us is heard."""
        self._carrier.announce(make_key(self._run, "present", TRAINER))
        self.say_hello()

    @property
    def settled(self) -> bool:
        """Whether this trainer may serve the run."""
        return clock.now() >= self._settled_at

    def say_hello(self) -> None:
        """Tell the workers that they have to greet this trainer; at most every half second."""
        if clock.now() < self._next_hello:
            return
        self._next_hello = clock.now() + GREET_EVERY_S
        hello = messages.Hello(
            run=self._run,
            worker=TRAINER,
            boot=self._boot,
            role="trainer",
            version=__version__,
            host=here(),
            life=self._life,
        )
        self._carrier.publish(make_key(self._run, "hello", TRAINER), messages.encode(hello), wait=False)

    def look(self) -> None:
        """Hear objections, and go on asking while not settled.

        Of two that serve (each came while the other could not be seen), the one that started first stays.

        Raises:
            Refused: if another trainer serves this run; names it.
        """
        now = clock.now()
        if now - self._looked_at > STALL_S:
            self._settled_at = max(self._settled_at, now + BACK_S)
        self._looked_at = now
        for payload in self._refusals.drain(10):
            try:
                message = messages.decode(payload)
            except WireError:
                continue
            if not isinstance(message, messages.Refusal) or message.boot != self._boot:
                continue
            if not self.settled or (self._rival is not None and self._rival < self._boot):
                raise Refused(message.text)
        if not self.settled or now >= self._next_hello - GREET_EVERY_S + HELLO_EVERY_S:
            self.say_hello()

    def meet(self, hello: messages.Hello) -> None:
        """Object to another trainer that has greeted."""
        if hello.boot == self._boot:
            return
        self._rival = hello.boot
        if not self.settled:
            return
        text = f"another trainer serves run {self._run!r}: {here()}. Stop it, or give this run another name"
        refusal = refusal_to(hello, "duplicate", text)
        self._carrier.publish(make_key(self._run, "refusal", TRAINER), messages.encode(refusal))
        _log.warning("told a second trainer (%s) that this run is served", hello.host)
