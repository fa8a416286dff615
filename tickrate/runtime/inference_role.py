"""The role ``infer``: answers the requests of workers whose policy is too large for their own machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tickrate import clock
from tickrate.errors import MessageError, PolicyError, WireError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.courier import TRAINER
from tickrate.runtime.inference import InferenceServer
from tickrate.wire import messages
from tickrate.wire.address import listen
from tickrate.wire.carrier import ANY, Carrier, make_key

_log = logging.getLogger(__name__)

NAME = "inference"
WAIT_S = 0.02
WORD_EVERY_S = 10.0


class InferenceRole:
    """Follows the trainer's weights and answers the newest request of each worker.

    Args:
        carrier: the way to the hub.
        run: name of the run.
        make_server: makes the server from the contract of the first worker that is heard.
    """

    def __init__(
        self, carrier: Carrier, run: str, make_server: Callable[[EnvironmentContract], InferenceServer]
    ) -> None:
        self._carrier, self._run, self._make_server = carrier, run, make_server
        self._server: InferenceServer | None = None
        self._waiting: messages.Weights | None = None
        self.answered = 0
        self._hellos = listen(carrier, make_key(run, "hello", ANY), capacity=100)
        self._weights = listen(carrier, make_key(run, "weights", TRAINER), capacity=1, newest_only=True)
        # Of each worker only the newest request matters: it has given up the ones before.
        self._requests = listen(carrier, make_key(run, "infer", ANY), capacity=1000, newest_only=True)
        carrier.announce(make_key(run, "present", NAME))

    def run(self, stop: threading.Event) -> None:
        """Answer until ``stop`` is set."""
        next_word = clock.now() + WORD_EVERY_S
        while not stop.is_set():
            self.step(WAIT_S)
            if clock.now() >= next_word:
                next_word = clock.now() + WORD_EVERY_S
                version = 0 if self._server is None else self._server.version
                _log.info("%d requests answered so far, policy %d", self.answered, version)

    def step(self, wait_s: float) -> None:
        """Take up new weights and answer what has come; with nothing there, wait up to ``wait_s`` seconds."""
        payload = self._requests.get(wait_s)
        for greeting in self._hellos.drain(100):
            self._meet(greeting)
        for weights in self._weights.drain(1):
            message = self._decode(weights)
            if isinstance(message, messages.Weights):
                self._waiting = message
        self._take_weights()
        if payload is not None:
            self._answer(payload)

    def _meet(self, payload: bytes) -> None:
        """Make the server once a worker says in what it acts."""
        hello = self._decode(payload)
        if self._server is not None or not isinstance(hello, messages.Hello) or hello.role != "worker":
            return
        try:
            contract = EnvironmentContract.from_dict(messages.json_of(hello.contract))
        except MessageError as error:
            _log.warning("left out a greeting of %s: %s", hello.worker, error)
            return
        self._server = self._make_server(contract)
        _log.info("serving workers like %s", hello.worker)

    def _take_weights(self) -> None:
        if self._server is None or self._waiting is None:
            return
        weights, self._waiting = self._waiting, None
        if weights.version == self._server.version:
            return
        try:
            self._server.load(weights.version, weights.payload)
        except PolicyError as error:
            _log.warning("left out policy %d: %s", weights.version, error)

    def _answer(self, payload: bytes) -> None:
        request = self._decode(payload)
        if not isinstance(request, messages.InferRequest) or self._server is None:
            return
        try:
            reply = messages.InferReply(
                run=self._run,
                worker=request.worker,
                boot=request.boot,
                sequence=request.sequence,
                actions=self._server.answer(request.observation),
            )
            self._carrier.publish(make_key(self._run, "answer", request.worker), messages.encode(reply))
        except WireError as error:
            _log.warning("no answer to %s: %s", request.worker, error)
        else:
            self.answered += 1

    @staticmethod
    def _decode(payload: bytes) -> messages.AnyMessage | None:
        try:
            return messages.decode(payload)
        except WireError as error:
            _log.warning("left out a message: %s", error)
            return None
