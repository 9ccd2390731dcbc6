"""A proxy that keeps every byte that a server sends."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator


class Recorder:
    """Passes connections on to a server. `received` is all that clients were sent."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._streams: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def received(self) -> bytes:
        return b"\n".join(bytes(stream) for stream in self._streams)

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                kept = bytearray()
                self._streams.append(kept)
                threading.Thread(target=_pass_on, args=(client, server, None), daemon=True).start()
                threading.Thread(target=_pass_on, args=(server, client, kept), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if kept is not None:
                kept += data
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def recording(url: str) -> Iterator[Recorder]:
    """A recorder before the server at an address."""
    recorder = Recorder(url)
    try:
        yield recorder
    finally:
        recorder.close()


def traces_of(alphabet: str, received: bytes) -> list[str]:
    """Where characters of an alphabet are in bytes: as UTF-8, escaped, or as the numbers of their bytes.

    The alphabet is of characters of two bytes in UTF-8 that nothing else in the bytes has.
    """
    text = received.decode("utf-8", errors="replace")
    first = {character.encode()[0] for character in alphabet}
    found = [f"...{text[max(0, text.index(c) - 60) :][:90]}" for c in alphabet if c in text]
    found += [f"0x{byte:02x}" for byte in first if bytes([byte]) in received]
    found += re.findall(
        "|".join(rf"\\u{ord(character):04x}" for character in alphabet), text, flags=re.IGNORECASE
    )
    for numbers in re.findall(r'"bytes": ?\[([\d, ]*)\]', text):
        found += [numbers for number in re.findall(r"\d+", numbers) if int(number) in first]
    return found
