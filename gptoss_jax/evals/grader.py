"""The grader of rubrics: a model that says, item by item, what an answer meets."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gptoss_jax.evals.healthbench import Verdict
from gptoss_jax.evals.run import in_threads
from gptoss_jax.evals.samplers import AskError
from gptoss_jax.evals.types import Ask, GradingError
from gptoss_jax.evals.verdicts import VerdictFile
from harmony.errors import shown_json

if TYPE_CHECKING:
    from harmony.json_types import JsonObject

PUBLISHED_URL = "https://api.openai.com/v1"
PUBLISHED_MODEL = "gpt-4.1-2025-04-14"
"""The grader of the published scores: its server, and its name there."""

TRIES = 8
"""How often a rubric item is asked for until the reply is a verdict. The harness asks for ever."""

_SYSTEM_MESSAGE = "You are a helpful assistant."
_TEMPERATURE = 0.5
_MAX_TOKENS = 2048
"""What the harness' sampler sends with the prompt of each rubric item."""

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "explanation": {"type": "string", "maxLength": 600},
        "criteria_met": {"type": "boolean"},
    },
    "required": ["explanation", "criteria_met"],
    "additionalProperties": False,
}
"""What the replies of a checkpoint are held to while they are sampled. An explanation without a limit could
go on to the limit of tokens, and leave no verdict."""

_FENCES = re.compile(r"^```json\s*|\s*```$")
"""What the harness takes off a reply: a fence of Markdown around it."""


@dataclass(frozen=True)
class GraderModel:
    """Which model grades.

    Attributes:
        name: its name: at the server, or that of the checkpoint's folder.
        url: the server's address before /chat/completions; None for a checkpoint.
        fingerprint: of the checkpoint; None for a server.
    """

    name: str
    url: str | None
    fingerprint: str | None = None

    @property
    def comparable(self) -> bool:
        """True for the grader of the published scores, at OpenAI's own address."""
        return self.name == PUBLISHED_MODEL and self.url is not None and _same(self.url, PUBLISHED_URL)

    @property
    def settings(self) -> JsonObject:
        """All that verdicts depend on."""
        where: JsonObject = {"checkpoint": self.fingerprint} if self.url is None else {"url": self.url}
        sampling: JsonObject = {"temperature": _TEMPERATURE, "max_tokens": _MAX_TOKENS}
        return {"model": self.name, **where, **sampling, "comparable": self.comparable}

    def __str__(self) -> str:
        where = "a checkpoint" if self.url is None else self.url
        return f"{self.name} ({where})" + ("" if self.comparable else ", not comparable")


class Grader:
    """Asks a model for verdicts, with several calls at a time. Use it as a context manager.

    Args:
        model: which model grades.
        connect: makes what asks it, when the first verdict is wanted: a checkpoint may need the memory that
            the graded model has until then.
        kept: the verdicts of this run so far; new ones are added. None keeps none.
        calls: the most calls at a time.
    """

    def __init__(
        self,
        model: GraderModel,
        connect: Callable[[], AbstractContextManager[Ask]],
        *,
        kept: VerdictFile | None = None,
        calls: int = 64,
    ) -> None:
        self.model = model
        self._connect, self._kept = connect, kept
        self._resources = ExitStack()
        self._calling = threading.BoundedSemaphore(calls)
        self._ask: Ask | None = None
        self._connecting = threading.Lock()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def comparable(self) -> bool:
        """True for the grader of the published scores."""
        return self.model.comparable

    def verdicts(self, name: str, prompts: Sequence[str]) -> list[Verdict | GradingError]:
        """See `gptoss_jax.evals.healthbench.RubricGrader`.

        A verdict that is kept is not asked for again. A reply that is no verdict is asked for again, `TRIES`
        times in all.
        """
        found: dict[int, Verdict | GradingError] = {}
        for (number, _), verdict in in_threads(
            lambda item: self._verdict(f"{name}/{item[0]}", item[1]), enumerate(prompts, 1), len(prompts)
        ):
            found[number] = verdict
        return [found[number] for number in sorted(found)]

    def close(self) -> None:
        """Ends what asks the model."""
        self._resources.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _verdict(self, name: str, prompt: str) -> Verdict | GradingError:
        verdict = self._kept.find(name, prompt) if self._kept is not None else None
        if verdict is not None:
            return verdict
        ask, text = self._connected(), ""
        for number in range(TRIES):
            with (
                self._calling
            ):  # until the verdict is kept: so many are lost at most if the process is killed
                try:
                    text = ask(self._body(name, prompt, number)).text
                except AskError as error:
                    return GradingError(str(error))
                verdict = read_reply(text)
                if verdict is not None:
                    if self._kept is not None:
                        self._kept.add(name, prompt, verdict)
                    return verdict
        return GradingError(f"none of {TRIES} replies was a verdict; the last was {shown_json(text)}")

    def _connected(self) -> Ask:
        with self._connecting:
            if self._ask is None:
                self._ask = self._resources.enter_context(self._connect())
            return self._ask

    def _body(self, name: str, prompt: str, number: int) -> JsonObject:
        body: JsonObject = {
            "messages": [
                {"role": "system", "content": _SYSTEM_MESSAGE},
                {"role": "user", "content": prompt},
            ],
            "temperature": _TEMPERATURE,
            "max_tokens": _MAX_TOKENS,
        }
        if self.model.url is None:
            schema: JsonObject = {"name": "grade", "strict": True, "schema": _SCHEMA}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
            body["reasoning_effort"] = "low"
            digest = hashlib.sha256(f"{name}/{number}".encode("utf-8", "surrogatepass")).digest()
            body["seed"] = int.from_bytes(digest[:4], "big")
        return body


def read_reply(text: str) -> Verdict | None:
    """Reads a grader's reply as the harness does.

    The reply is a JSON object whose "criteria_met" is true or false, alone or in a fence of Markdown that
    begins with exactly "```json". Python's `json` decides what JSON is.

    Returns:
        The verdict. None if the reply is something else. Then the harness asks again; at some such replies,
        for example a bare number, its code fails instead.
    """
    try:
        reply = json.loads(_FENCES.sub("", text.strip()))
    except (ValueError, RecursionError):
        return None
    met = reply.get("criteria_met") if isinstance(reply, dict) else None
    if not isinstance(met, bool):
        return None
    explanation = reply.get("explanation", "")
    return Verdict(met, explanation if isinstance(explanation, str) else json.dumps(explanation))


def _same(url: str, other: str) -> bool:
    """True if two addresses are the same but for case and a slash at the end."""
    first, second = (urlsplit(address.lower().rstrip("/")) for address in (url, other))
    return (first.scheme, first.netloc, first.path) == (second.scheme, second.netloc, second.path)
