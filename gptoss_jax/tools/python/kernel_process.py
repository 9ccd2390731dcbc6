"""The Python kernel's own process: ipykernel, whose output is cut before it leaves the process.

It runs as a script: `kernel_process.py CONNECTION_FILE CHARACTERS`.
"""

from __future__ import annotations

import sys
from typing import Any

from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.session import Session
from traitlets.config import Config

_ERROR_CHARACTERS = 8000
"""How much of a traceback is kept, where a call may say that much."""


class CuttingSession(Session):
    """Sends the first `limit` characters of each call's output, and counts the rest.

    The reply to a call says in `cut` how many characters were left out.
    """

    limit = 0
    _left = 0
    _cut = 0

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, *rest: Any, **named: Any) -> Any:
        """See `Session.send`."""
        is_message = isinstance(msg_or_type, dict)
        kind = msg_or_type["header"]["msg_type"] if is_message else msg_or_type
        body = msg_or_type["content"] if is_message else content
        if isinstance(body, dict):
            changed = self._shortened(kind, body)
            if changed is None:
                return None
            if is_message:
                msg_or_type = {**msg_or_type, "content": changed}
            else:
                content = changed
        return super().send(stream, msg_or_type, content, *rest, **named)

    def _shortened(self, kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
        """The content as it is sent; None if the message has nothing left to say."""
        if kind == "execute_input":
            self._left, self._cut = self.limit, 0
            return {**content, "code": ""}
        if kind == "stream":
            text = self._take(content["text"])
            return {**content, "text": text} if text else None
        if kind in ("display_data", "update_display_data", "execute_result"):
            data = content.get("data", {})
            others = sorted(str(name) for name in data if name != "text/plain")
            text = self._take(str(data.get("text/plain", "")))
            return {**content, "data": {"text/plain": text, "others": others}, "metadata": {}}
        if kind == "error":
            return _short_error(content, min(self.limit, _ERROR_CHARACTERS))
        if kind == "execute_reply":
            payload = [self._payload(entry) for entry in content.get("payload", [])]
            short = _short_error(content, 0) if content.get("status") == "error" else content
            return {**short, "payload": payload, "cut": self._cut}
        return content

    def _payload(self, entry: dict[str, Any]) -> dict[str, Any]:
        """An entry of a reply: a text for a pager, as `name?` gives, or the wish to exit."""
        text = str((entry.get("data") or {}).get("text/plain", ""))
        return {"source": entry.get("source"), "text": self._take(text)}

    def _take(self, text: str) -> str:
        taken = text[: max(self._left, 0)]
        self._left -= len(taken)
        self._cut += len(text) - len(taken)
        return _plain(taken)


def _short_error(content: dict[str, Any], limit: int) -> dict[str, Any]:
    """The content of an error, with a traceback of at most `limit` characters: its beginning and its end."""
    text = _plain("\n".join(map(str, content.get("traceback", []))))
    if len(text) > limit:
        text = f"{text[: limit // 3]}\n…\n{text[len(text) - 2 * limit // 3 :]}"
    return {"status": "error", "ename": "", "evalue": "", "traceback": [text]}


def _plain(text: str) -> str:
    """The text without lone surrogates, which no message can carry."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class LastingStream(OutStream):
    """An output stream that code cannot close: the next call needs it."""

    def close(self) -> None:
        """Writes out what is there."""
        self.flush()


class KernelApp(IPKernelApp):
    """ipykernel with a `CuttingSession`."""

    def _session_default(self) -> Session:
        return CuttingSession(parent=self)


def main() -> None:
    """Runs the kernel until it is ended."""
    connection_file, characters = sys.argv[1], int(sys.argv[2])
    CuttingSession.limit = characters
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    config.IPCompleter.use_jedi = False
    config.IPKernelApp.outstream_class = f"{__name__}.LastingStream"
    KernelApp.launch_instance(["-f", connection_file], config=config)


if __name__ == "__main__":
    main()
