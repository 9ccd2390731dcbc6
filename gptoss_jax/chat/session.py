"""The chat: messages in, answers out, and the commands between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gptoss_jax.chat.backend import Answer, Backend, ChatMessage, Piece
from gptoss_jax.chat.commands import COMMANDS, split_command
from gptoss_jax.chat.display import Display
from gptoss_jax.chat.errors import ChatError, one_line
from gptoss_jax.chat.interrupts import until_interrupted
from gptoss_jax.chat.tools import ToolRunner
from gptoss_jax.chat.transcript import Transcript

INTERRUPTED = "The user interrupted the call."
"""The result of a call of a built-in tool that Ctrl-C ended."""

NOT_RUN = "The call was not run: no more calls are allowed for this answer."
"""The result of a call of a built-in tool beyond the limit."""


class MessageInput(Protocol):
    """Where messages come from.

    is_interactive: True if a person types them; Ctrl-C at the prompt then ends nothing.
    """

    is_interactive: bool

    def message(self) -> str:
        """The next message. Raises EOFError at the end, ChatError for one that cannot be read."""

    def result(self, name: str) -> str:
        """The result of a call of the function `name`. Raises as `message`."""


class Chat:
    """A conversation with a model.

    failures: how many messages got no answer.
    """

    def __init__(
        self,
        backend: Backend,
        transcript: Transcript,
        input: MessageInput,
        display: Display,
        *,
        effort: str | None = None,
        stats: bool = True,
        tools: ToolRunner | None = None,
        rounds: int = 50,
    ) -> None:
        """A chat.

        Args:
            backend: answers.
            transcript: what was said so far; saved after every turn, if it has a file.
            input: gives messages and commands.
            display: shows answers.
            effort: "low", "medium" or "high"; None for the default of the backend.
            stats: True for a line of tokens, rate and finish reason after every answer.
            tools: runs the calls of built-in tools; None if there are none. The caller closes it.
            rounds: how often the model may call built-in tools before it answers.
        """
        self.failures = 0
        self._backend = backend
        self._transcript = transcript
        self._input = input
        self._display = display
        self._effort = effort
        self._stats = stats
        self._tools = tools
        self._rounds = rounds
        self._actions: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/effort": self._set_effort,
            "/reasoning": self._set_reasoning,
            "/retry": self._retry,
            "/undo": self._undo,
            "/save": self._save,
            "/load": self._load,
        }

    def run(self) -> None:
        """Reads and answers until the input ends or says /quit."""
        while True:
            try:
                text = self._input.message()
                command = split_command(text)
                if command is not None and command[0] == "/quit" and not command[1]:
                    return
                if command is not None:
                    self._run_command(*command)
                elif text.strip():
                    self._transcript.add_user(text)
                    self._turn()
            except EOFError:
                return
            except ChatError as error:
                self.failures += 1
                self._display.error(error)
            except KeyboardInterrupt:
                if not self._input.is_interactive:
                    raise
                self._display.note("Ctrl-D or /quit ends the program.")

    # Answers

    def _turn(self) -> None:
        """Answers the last message, with the results of the functions that the model calls, and saves."""
        try:
            rounds = 0
            while self._answer():
                rounds += 1
                if not all(self._give_result(call, rounds) for call in self._transcript.open_calls()):
                    break
        finally:
            self._transcript.close_calls()
            self._transcript.save()

    def _answer(self) -> bool:
        """Asks the model once. True if it calls functions and goes on with their results.

        Raises:
            ChatError: there is no answer, or it broke off; what came of it is kept.
        """
        came: list[Piece] = []
        answer: Answer | None = None
        start = time.monotonic()
        self._display.wait()
        try:
            for item in until_interrupted(self._backend.answer(self._transcript.messages, self._effort)):
                if isinstance(item, Answer):
                    answer = item
                else:
                    came.append(item)
                    self._display.piece(item)
        except KeyboardInterrupt:
            self._display.finish()
            kept = self._keep_part(came, "cancelled")
            self._display.note(f"stopped; {kept}")
            return False
        except ChatError as error:
            self._display.finish()
            kept = self._keep_part(came, "error")
            raise ChatError(f"{error} ({kept})") from None
        self._display.finish()
        if answer is None:
            raise ChatError(f"{self._backend.name} gave no answer")
        return self._take(answer, time.monotonic() - start)

    def _take(self, answer: Answer, seconds: float) -> bool:
        """Adds a whole answer to the conversation. True if it calls functions."""
        message = dict(answer.message)
        calls = message.get("tool_calls")
        if calls or message.get("content") or message.get("reasoning"):
            if answer.finish_reason not in ("stop", "tool_calls"):
                message["finish_reason"] = answer.finish_reason
            self._transcript.add_answer(message)
        for call in calls or []:
            if self._tools is not None and self._tools.owns(call):
                continue  # it is shown when it is run
            self._display.call(call["function"]["name"], call["function"]["arguments"])
        if self._stats:
            self._display.note(_statistics(answer, seconds))
        if not calls and not message.get("content"):
            raise ChatError(f"there is no answer: it ended ({answer.finish_reason}) before any text")
        return bool(calls)

    def _keep_part(self, pieces: list[Piece], reason: str) -> str:
        """Adds what came of an answer to the conversation, marked with the reason; says what was kept."""
        content = "".join(piece.text for piece in pieces if piece.kind == "content")
        reasoning = "".join(piece.text for piece in pieces if piece.kind == "reasoning")
        if not content and not reasoning:
            return "nothing was answered: /retry asks again, /undo takes the message back"
        message: ChatMessage = {"role": "assistant", "content": content or None}
        if reasoning:
            message["reasoning"] = reasoning
        self._transcript.add_answer({**message, "finish_reason": reason})
        part = "the answer so far is kept" if content else "the reasoning so far is kept"
        return f"{part}: /retry asks again"

    def _give_result(self, call: dict[str, Any], rounds: int) -> bool:
        """Adds the result of a call: from a built-in tool, or else from the user. False ends the turn."""
        if self._tools is None or not self._tools.owns(call):
            return self._ask_result(call)
        if rounds > self._rounds:
            self._display.note(f"the model has used its tools {self._rounds} times (--tool-rounds)")
            self._transcript.add_result(call, NOT_RUN)
            return False
        function = call["function"]
        self._display.tool_call(function["name"], function["arguments"])
        try:
            for result in until_interrupted(self._tools.run(call)):
                self._display.tool_result(result)
                self._transcript.add_result(call, result)
        except KeyboardInterrupt:
            self._transcript.add_result(call, INTERRUPTED)
            self._display.note("the call is interrupted")
            return False
        return True

    def _ask_result(self, call: dict[str, Any]) -> bool:
        """Asks the user for the result of a call, since nobody else runs it. False if Ctrl-C says that there
        is none."""
        try:
            result = self._input.result(call["function"]["name"])
        except KeyboardInterrupt:
            if not self._input.is_interactive:
                raise
            self._display.note("the call gets no result")
            return False
        self._transcript.add_result(call, result)
        return True

    # Commands

    def _run_command(self, name: str, argument: str) -> None:
        command = next((command for command in COMMANDS if command.name == name), None)
        if command is None:
            raise ChatError(
                f"there is no command {name}: /help lists them; behind a space it is sent as a message"
            )
        if argument and not command.values and not command.takes_file:
            raise ChatError(f"{name} takes no argument, not {argument!r}")
        if argument and command.values and argument not in command.values:
            raise ChatError(f"{name} is followed by {' or '.join(command.values)}, not {argument!r}")
        if command.takes_file and not argument and not (name == "/save" and self._transcript.path):
            raise ChatError(f"{name} is followed by a file's name")
        if name in self._actions:
            self._actions[name](argument)

    def _help(self, argument: str) -> None:
        width = max(len(command.usage) for command in COMMANDS)
        for command in COMMANDS:
            self._display.note(f"{command.usage:{width}}  {command.help}")
        self._display.note("Alt-Enter, or a backslash at the end of a line, begins a new line.")
        self._display.note("Ctrl-C stops an answer. A line that begins with a space is always a message.")

    def _clear(self, argument: str) -> None:
        path = self._transcript.path
        self._transcript.clear()
        self._reset_tools()
        kept = f"; {path} keeps the one before, and this one is not saved" if path else ""
        self._display.note(f"a new conversation begins{kept}")

    def _set_effort(self, argument: str) -> None:
        self._effort = argument or self._effort
        self._display.note(f"effort: {self._effort or 'the default'}")

    def _set_reasoning(self, argument: str) -> None:
        if argument:
            self._display.show_reasoning = argument == "on"
        self._display.note(f"reasoning: {'shown' if self._display.show_reasoning else 'hidden'}")

    def _retry(self, argument: str) -> None:
        if not self._transcript.drop_answer():
            raise ChatError("there is no message to answer again")
        self._turn()

    def _undo(self, argument: str) -> None:
        if not self._transcript.undo():
            raise ChatError("there is no message to take back")
        self._transcript.save()
        self._display.note(f"taken back: {described(self._transcript)}")

    def _save(self, argument: str) -> None:
        if argument:
            self._transcript.save_as(Path(argument).expanduser())
        else:
            self._transcript.save()
        self._display.note(f"{self._transcript.path}: {described(self._transcript)}")

    def _load(self, argument: str) -> None:
        path = Path(argument).expanduser()
        if not path.exists():
            raise ChatError(f"there is no file {path}")
        self._transcript = Transcript.load(path)
        self._reset_tools()
        self._display.note(f"{path}: {described(self._transcript)}")

    def _reset_tools(self) -> None:
        """Another conversation has tools of its own."""
        if self._tools is not None:
            self._tools.reset()


def described(transcript: Transcript) -> str:
    """How long a conversation is, in words."""
    turns = transcript.turns
    if not turns:
        return "a new conversation"
    return f"{turns} turn{'' if turns == 1 else 's'}"


def _statistics(answer: Answer, seconds: float) -> str:
    """Tokens, their rate from the request to the end, and why the answer ended."""
    parts = []
    if answer.generated_tokens is not None:
        reasoning = answer.reasoning_tokens
        of_them = f" ({reasoning} reasoning)" if reasoning else ""
        parts.append(f"{answer.generated_tokens} tokens{of_them}")
        if seconds > 0:
            parts.append(f"{answer.generated_tokens / seconds:.1f} tokens/s")
    parts.append(answer.finish_reason)
    return one_line(" · ".join(parts))
