"""Sends the first process's calls to the other processes of a model that spans several hosts.

All processes must call the same steps in the same order with the same arrays. The first process, the leader,
decides. It sends each call to the others over TCP and then makes the call itself; the others repeat what they
receive. The leader's address and a random key are exchanged through jax's own collectives. Connections
without the key are refused, and delay nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge

import jax
import numpy as np
from numpy.typing import ArrayLike

_KEY_BYTES = 32
_CONNECT_SECONDS = 300.0
"""How long the first process waits for the others: they have all got its address by then."""
_CLOSE = "close"


class Leader:
    """The side of the first process."""

    def __init__(self, connections: list[Connection]):
        self._connections = connections

    def send(self, name: str, arrays: tuple[np.ndarray, ...]) -> None:
        """Sends a call to the other processes: a method's name and its arguments."""
        message = _pack(name, arrays)
        for connection in self._connections:
            connection.send_bytes(message)

    def close(self) -> None:
        """Ends the `follow` of the other processes."""
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.send_bytes(_pack(_CLOSE, ()))
            connection.close()


class Follower:
    """The side of every other process."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def follow(self, perform: Callable[[str, tuple[np.ndarray, ...]], object]) -> None:
        """Calls `perform` with each call that the leader sends, until the leader closes.

        Raises:
            ConnectionError: the leader's process ended without closing.
        """
        while True:
            try:
                name, arrays = _unpack(self._connection.recv_bytes())
            except EOFError:
                raise ConnectionError("the first process has ended before it closed its engine") from None
            if name == _CLOSE:
                self._connection.close()
                return
            perform(name, arrays)


def connect() -> tuple[Leader | None, Follower | None]:
    """Connects the processes of `jax.distributed`. All of them must call it at the same time.

    Returns a `Leader` in the first process, a `Follower` in the others; (None, None) if there is only one.

    Raises:
        ConnectionError: another process does not connect to the first one.
    """
    if jax.process_count() == 1:
        return None, None
    from jax.experimental.multihost_utils import broadcast_one_to_all

    if jax.process_index() == 0:
        key = secrets.token_bytes(_KEY_BYTES)
        with Listener(("", 0), backlog=jax.process_count()) as listener:
            port = listener.address[1]
            broadcast_one_to_all(_offer(_own_address(), port, key))
            return Leader(accept_followers(listener, key, jax.process_count() - 1)), None
    address, port, key = _accept(broadcast_one_to_all(_offer("0.0.0.0", 0, bytes(_KEY_BYTES))))
    return None, Follower(Client((address, port), authkey=key))


def accept_followers(
    listener: Listener, key: bytes, count: int, seconds: float = _CONNECT_SECONDS
) -> list[Connection]:
    """Returns `count` connections to processes that know the key.

    Each connection proves it in a thread of its own. So a stranger that says nothing, or anything else, keeps
    no follower waiting.

    Args:
        listener: where they connect. It has no key: it would let strangers in one after the other.
        key: the secret.
        count: how many there are.
        seconds: how long to wait for each.

    Raises:
        ConnectionError: fewer connect.
    """
    proven: queue.SimpleQueue[Connection] = queue.SimpleQueue()
    unproven: set[Connection] = set()
    ended = threading.Event()

    def prove(connection: Connection) -> None:
        try:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
        except (OSError, EOFError, ValueError, AuthenticationError):
            connection.close()
        else:
            proven.put(connection)
        unproven.discard(connection)

    def accept() -> None:
        while not ended.is_set():
            try:
                connection = listener.accept()
            except OSError:  # a connection that ended before it was accepted
                continue
            unproven.add(connection)
            threading.Thread(target=prove, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, name="followers", daemon=True)
    accepting.start()
    found: list[Connection] = []
    try:
        while len(found) < count:
            found.append(proven.get(timeout=seconds))
        return found
    except queue.Empty:
        for connection in found:
            connection.close()
        raise ConnectionError(
            f"{len(found)} of {count} other processes connected to this one, the first, and no more within "
            f"{seconds:g} seconds"
        ) from None
    finally:
        ended.set()
        with contextlib.suppress(OSError):  # a last connection, which ends the waiting for more
            socket.create_connection(("127.0.0.1", listener.address[1]), timeout=5).close()
        accepting.join(5)
        for connection in list(unproven):  # their threads close them
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)


def _own_address() -> str:
    """This host's address on the interface of the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _offer(address: str, port: int, key: bytes) -> np.ndarray:
    return np.frombuffer(socket.inet_aton(address) + struct.pack("!I", port) + key, np.uint8)


def _accept(offer: ArrayLike) -> tuple[str, int, bytes]:
    data = np.asarray(offer).astype(np.uint8).tobytes()
    return socket.inet_ntoa(data[:4]), struct.unpack("!I", data[4:8])[0], data[8:]


def _pack(name: str, arrays: tuple[np.ndarray, ...]) -> bytes:
    """A call as bytes: the name and the arrays' dtypes and shapes as JSON, then the arrays' contents."""
    header = json.dumps([name, [(array.dtype.str, array.shape) for array in arrays]]).encode()
    contents = (np.ascontiguousarray(array).tobytes() for array in arrays)
    return b"".join((struct.pack("!I", len(header)), header, *contents))


def _unpack(message: bytes) -> tuple[str, tuple[np.ndarray, ...]]:
    (size,) = struct.unpack_from("!I", message)
    name, described = json.loads(message[4 : 4 + size])
    arrays, start = [], 4 + size
    for dtype, shape in described:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(message, dtype, count, start).reshape(shape))
        start += count * np.dtype(dtype).itemsize
    return name, tuple(arrays)
