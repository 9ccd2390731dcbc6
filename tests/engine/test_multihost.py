"""Processes of one model find each other, whoever else connects to the port on which the first one waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener

import pytest

from gptoss_jax.engine.multihost import accept_followers

KEY = b"a key that strangers do not have"


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(("127.0.0.1", 0), backlog=8) as listener:
        yield listener


def silent(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address)


def gone(address: tuple[str, int]) -> socket.socket:
    stranger = socket.create_connection(address)
    stranger.close()
    return stranger


def a_browser(address: tuple[str, int]) -> socket.socket:
    stranger = socket.create_connection(address)
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
    return stranger


def huge(address: tuple[str, int]) -> socket.socket:
    stranger = socket.create_connection(address)
    stranger.sendall(b"\x7f\xff\xff\xff")  # announces a message of 2 GiB
    return stranger


def wrong_answer(address: tuple[str, int]) -> socket.socket:
    stranger = socket.create_connection(address)
    stranger.sendall(b"\0\0\0\x20" + bytes(32))
    return stranger


@pytest.mark.parametrize("stranger", [silent, gone, a_browser, huge, wrong_answer])
def test_a_stranger_neither_gets_in_nor_keeps_the_others_waiting(listener: Listener, stranger) -> None:
    strangers = [stranger(listener.address) for _ in range(3)]
    connected: list[Connection] = []

    def connect() -> None:
        connected.extend(Client(listener.address, authkey=KEY) for _ in range(2))

    following = threading.Thread(target=connect)
    following.start()
    found = accept_followers(listener, KEY, 2, seconds=60)
    following.join()
    for number, connection in enumerate(found):
        connection.send_bytes(b"call %d" % number)
    assert sorted(connection.recv_bytes() for connection in connected) == [b"call 0", b"call 1"]
    for connection in [*found, *connected, *strangers]:
        connection.close()


def test_with_another_key_a_process_is_a_stranger(listener: Listener) -> None:
    refused: list[Exception] = []

    def connect() -> None:
        try:
            Client(listener.address, authkey=b"another")
        except Exception as error:
            refused.append(error)

    following = threading.Thread(target=connect)
    following.start()
    with pytest.raises(ConnectionError, match=r"^0 of 1 other processes connected to this one"):
        accept_followers(listener, KEY, 1, seconds=0.5)
    following.join()
    assert len(refused) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "followers"]
