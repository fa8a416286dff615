"""The game's sockets: they stream and listen on loopback and never make the game wait for a client."""

from __future__ import annotations

import socket

from tickrate.errors import MessageError
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.protocol import CONTROL, unpack_control

HOST = "127.0.0.1"
_MOST_CLIENTS = 16
_SEND_BUFFER = 16 * 1024
_READ_SIZE = 256 * CONTROL.size


class _Server:
    """A listening socket and its clients, all non-blocking. Beyond 16 clients the oldest is dropped."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server((HOST, port), backlog=_MOST_CLIENTS)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._clients: dict[socket.socket, bytearray] = {}

    def accept(self) -> None:
        """Take the clients that wait to be let in."""
        for _ in range(_MOST_CLIENTS):
            try:
                client, _ = self._listener.accept()
            except OSError:  # nobody waits, or whoever did has gone again
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            if len(self._clients) >= _MOST_CLIENTS:
                self._drop(next(iter(self._clients)))
            self._clients[client] = bytearray()

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        client.close()

    def close(self) -> None:
        """Close the listener and all clients."""
        for client in list(self._clients):
            self._drop(client)
        self._listener.close()


class StreamServer(_Server):
    """Sends each packet to every client; one that does not keep up misses whole packets, never parts."""

    def broadcast(self, packet: bytes) -> None:
        """Offer a packet to all clients; those with no room for it go without."""
        for client, pending in list(self._clients.items()):
            try:
                if pending:
                    del pending[: client.send(pending)]
                if not pending:
                    pending += packet[client.send(packet) :]
            except BlockingIOError:
                continue
            except OSError:
                self._drop(client)


class ControlServer(_Server):
    """Reads commands. A client that sends anything else is dropped."""

    def receive(self) -> list[tuple[Command | None, int]]:
        """Return the commands and buttons that arrived, oldest first; at most 256 a client and call."""
        arrived: list[tuple[Command | None, int]] = []
        for client, buffer in list(self._clients.items()):
            try:
                data = client.recv(_READ_SIZE)
                if not data:
                    raise ConnectionResetError
                buffer += data
                while len(buffer) >= CONTROL.size:
                    arrived.append(unpack_control(bytes(buffer[: CONTROL.size])))
                    del buffer[: CONTROL.size]
            except BlockingIOError:
                continue
            except (OSError, MessageError):
                self._drop(client)
        return arrived
