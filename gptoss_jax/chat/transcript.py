"""The conversation of a chat: chat messages, and the file they are kept in."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from gptoss_jax.chat.backend import ChatMessage
from gptoss_jax.chat.errors import ChatError, one_line
from gptoss_jax.chat.text import without_surrogates
from gptoss_jax.openai_api.errors import ApiError
from gptoss_jax.openai_api.json_text import parse_object
from harmony import HarmonyFormatError
from harmony.openai_formats import conversation_from_chat

NO_RESULT = "The user gave no result."
"""The result of a call that the user did not answer: a call without one cannot stand in a conversation."""


class Transcript:
    """Chat messages from the instructions on.

    messages: the messages.
    path: the file that `save` writes; None if there is none.
    """

    def __init__(self, instructions: str | None = None, path: Path | None = None) -> None:
        self.messages: list[ChatMessage] = []
        self.path = path
        if instructions:
            self.instruct(instructions)

    @classmethod
    def load(cls, path: Path) -> Transcript:
        """The conversation of a file of JSON lines, each a chat message.

        Raises:
            ChatError: the file cannot be read, or is no conversation; names the line.
        """
        transcript = cls(path=path)
        try:
            _check_regular(path)
            raw = path.read_bytes()
        except OSError as error:
            raise ChatError(f"cannot read {path}: {error.strerror or error}") from None
        for number, line in enumerate(raw.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                message = _cleaned(parse_object(line))
                transcript.messages.append(message)
                conversation_from_chat([message if message.get("role") != "tool" else _STAND_IN])
            except (ApiError, HarmonyFormatError) as error:
                raise ChatError(one_line(f"{path}, line {number}: {error}")) from None
        try:
            if transcript.messages:
                conversation_from_chat(transcript.messages)
        except HarmonyFormatError as error:
            raise ChatError(one_line(f"{path}: {error}")) from None
        return transcript

    def save(self) -> None:
        """Replaces the file by the conversation as it is, in one step: a reader never sees a part of it.

        A new file can be read by its owner alone; one that exists keeps its permissions. Without a path
        nothing happens.

        Raises:
            ChatError: the file cannot be written.
        """
        if self.path is None:
            return
        lines = [json.dumps(message, ensure_ascii=False) + "\n" for message in self.messages]
        try:
            _check_regular(self.path)
            _replace(Path(os.path.realpath(self.path)), "".join(lines).encode())
        except OSError as error:
            raise ChatError(f"cannot write {self.path}: {error.strerror or error}") from None

    def save_as(self, path: Path) -> None:
        """Saves into a file that does not exist yet, which `save` writes from now on.

        Raises:
            ChatError: the file exists, or cannot be written.
        """
        if self.path is None or os.path.realpath(path) != os.path.realpath(self.path):
            if os.path.lexists(path):
                raise ChatError(f"{path} exists: /load goes on with it, another name makes a new file")
            before, self.path = self.path, path
            try:
                self.save()
            except ChatError:
                self.path = before
                raise
        else:
            self.save()

    def clear(self) -> None:
        """Begins anew with the same instructions; the file keeps what it has, and is this one's no more."""
        self.messages = self.messages[: self._first_turn()]
        self.path = None

    def instruct(self, instructions: str) -> None:
        """Puts instructions in the place of those that the conversation began with."""
        self.messages[: self._first_turn()] = [{"role": "system", "content": instructions}]

    def add_user(self, text: str) -> None:
        """Adds a user's message. Calls that wait for results get `NO_RESULT`."""
        self.close_calls()
        self.messages.append({"role": "user", "content": text})

    def add_answer(self, message: ChatMessage) -> None:
        """Adds an assistant's message. A model can call anything: functions whose names cannot stand in a
        conversation are renamed to "unknown"."""
        try:
            conversation_from_chat([message])
        except HarmonyFormatError:
            for call in message.get("tool_calls", ()):
                call["function"]["name"] = "unknown"
        self.messages.append(message)

    def add_result(self, call: dict[str, Any], result: str) -> None:
        """Adds the result of a call, one of `open_calls`."""
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def open_calls(self) -> list[dict[str, Any]]:
        """The calls of the last answer that have no result yet."""
        answered = []
        for message in reversed(self.messages):
            if message["role"] != "tool":
                calls = message.get("tool_calls") or []
                return [call for call in calls if call["id"] not in answered]
            answered.append(message["tool_call_id"])
        return []

    def close_calls(self) -> None:
        """Gives `NO_RESULT` to the calls without a result."""
        for call in self.open_calls():
            self.add_result(call, NO_RESULT)

    def undo(self) -> bool:
        """Takes back the last message of the user and all that followed. False if there is none."""
        index = self._last_user()
        if index is None:
            return False
        del self.messages[index:]
        return True

    def drop_answer(self) -> bool:
        """Takes back all that followed the last message of the user. False if there is no such message."""
        index = self._last_user()
        if index is None:
            return False
        del self.messages[index + 1 :]
        return True

    @property
    def turns(self) -> int:
        """How many messages the user has sent."""
        return sum(message["role"] == "user" for message in self.messages)

    def _first_turn(self) -> int:
        """The index of the first message that is no instruction."""
        for index, message in enumerate(self.messages):
            if message["role"] not in ("system", "developer"):
                return index
        return len(self.messages)

    def _last_user(self) -> int | None:
        for index in reversed(range(len(self.messages))):
            if self.messages[index]["role"] == "user":
                return index
        return None


_STAND_IN: ChatMessage = {"role": "user", "content": ""}
"""For a result of a call, which can only be checked behind its call."""


def _cleaned(message: dict[str, Any]) -> dict[str, Any]:
    """The message without lone surrogates, which JSON can write and no request can carry."""
    text = json.dumps(message, ensure_ascii=False)
    cleaned: dict[str, Any] = json.loads(without_surrogates(text))
    return cleaned


def _check_regular(path: Path) -> None:
    """Raises OSError for what exists and is no file: a device or a pipe must be neither read nor replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(0, "it is not a regular file")


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(name, stat.S_IMODE(path.stat().st_mode))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
