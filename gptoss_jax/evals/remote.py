"""Answers from a server that speaks one of OpenAI's two APIs."""

from __future__ import annotations

import email.utils
import json
import random
import socket
import time
from collections.abc import Callable
from typing import Any, Literal

import httpx

from gptoss_jax.evals.samplers import AskError
from gptoss_jax.evals.types import Answer, EvaluationError
from harmony.json_types import JsonObject

Api = Literal["responses", "chat"]

_PATHS: dict[Api, str] = {"responses": "responses", "chat": "chat/completions"}
_DAY = 24 * 60 * 60.0
"""Seconds for an answer, as the harness waits: it may stand in a queue."""

_CONNECT_SECONDS = 10.0

_JSON = {"Content-Type": "application/json"}

_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""The statuses that may be different next time."""

_FOR_ALL = {
    401: "the key is refused",
    403: "the key is refused",
    404: "there is no such address or model",
    405: "there is no such address",
}
"""The statuses that every other request would get too."""

_LONGEST_PAUSE = 60.0


class ServerModel:
    """Answers chat bodies by asking a server. Use it as a context manager. Any thread may call it.

    What may be different next time is tried again, with pauses that double from one second on to a minute: a
    connection that fails or breaks, and the statuses 408, 409, 425, 429 and 5xx. An answer with the header
    `Retry-After` says how long to wait itself, up to a minute.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api: Api = "responses",
        key: str | None = None,
        retries: int = 7,
        connections: int = 64,
        seconds: float = _DAY,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects to a server.

        Args:
            url: the address before `/responses` and `/chat/completions`, such as http://127.0.0.1:8000/v1.
            model: the model's name; None asks the server for its only one.
            api: which API to use.
            key: the API key; None sends none.
            retries: how often a request is tried again, at most.
            connections: the most that are open at a time.
            seconds: how long a request may be silent until it counts as broken.
            pause: waits that many seconds.

        Raises:
            EvaluationError: the URL, the key or the environment's proxy cannot be used; or `model` is None,
                and the server does not name exactly one.
        """
        if not url.startswith(("http://", "https://")):
            raise EvaluationError(f"the URL is {url!r}: it must begin with http:// or https://")
        if key and not (key.isascii() and key.isprintable()):
            raise EvaluationError("the API key cannot be sent: it must be printable ASCII characters")
        self._url, self._api, self._retries, self._pause = url.rstrip("/"), api, retries, pause
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        try:
            self._client = httpx.Client(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
                limits=limits,
                # Without it, a request would wait a whole day for a server that has vanished.
                transport=httpx.HTTPTransport(
                    limits=limits, socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
                )
                if not _has_proxy()
                else None,
            )
        except (ImportError, ValueError) as error:
            raise EvaluationError(f"the environment names a proxy that cannot be used: {error}") from None
        try:
            self.name = model if model is not None else self._only_model()
        except BaseException:
            self.close()
            raise

    def __call__(self, body: JsonObject) -> Answer:
        """See `gptoss_jax.evals.types.Ask`.

        Raises:
            EvaluationError: no request of this kind can be answered: the server is not reached, refuses the
                key, or has no such address or model.
        """
        sent = {"model": self.name, **(_as_response(body) if self._api == "responses" else body)}
        document = self._post(f"{self._url}/{_PATHS[self._api]}", sent)
        try:
            return _from_response(document) if self._api == "responses" else _from_chat(document)
        except (KeyError, TypeError, IndexError, AttributeError):
            raise AskError("bad_answer", f"the server's answer is none of the {self._api} API") from None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __enter__(self) -> ServerModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, address: str, body: JsonObject) -> Any:
        """The JSON of an answer, after as many tries as it takes."""
        data = json.dumps(body).encode()  # in ASCII: UTF-8 has no lone surrogates, and texts may
        for tries in range(self._retries + 1):
            wait = min(2.0**tries, _LONGEST_PAUSE) * random.uniform(0.75, 1.0)  # not all at the same moment
            try:
                response = self._client.post(address, content=data, headers=_JSON)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise EvaluationError(f"the URL {self._url!r} cannot be used: {error}") from None
            except httpx.HTTPError as error:
                failure: Exception = EvaluationError(
                    f"{self._url} is not reached: {error or type(error).__name__}".replace("\n", " ")
                )
            else:
                if response.is_success:
                    return _json(response)
                reason = _reason(response)
                if response.status_code not in _AGAIN:
                    self._refuse(response, reason, body)
                failure = AskError(f"http_{response.status_code}", reason)
                wait = _asked_wait(response, wait)
            if tries < self._retries:
                self._pause(wait)
        raise failure

    def _refuse(self, response: httpx.Response, reason: str, body: JsonObject) -> None:
        """Raises the error of an answer that would be the same next time."""
        status = response.status_code
        if response.is_redirect:
            raise EvaluationError(f"{self._url} has moved to {response.headers.get('location')}")
        if status in _FOR_ALL:
            raise EvaluationError(f"{self._url}: {_FOR_ALL[status]} ({status}: {reason})")
        if status in (400, 422) and "seed" in body and "seed" in reason.lower():
            raise EvaluationError(f"{self._url} takes no seed ({status}: {reason}): give --no-seed")
        raise AskError(f"http_{status}", reason)

    def _only_model(self) -> str:
        try:
            response = self._client.get(f"{self._url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EvaluationError(f"{self._url} is not reached: {error or type(error).__name__}") from None
        if not response.is_success:
            raise EvaluationError(f"{self._url}/models says {response.status_code}: {_reason(response)}")
        try:
            names = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if len(names) != 1:
            offers = f"offers {', '.join(names)}" if names else "names no model"
            raise EvaluationError(f"{self._url} {offers}: choose with --model")
        return names[0]


def _has_proxy() -> bool:
    """True if the environment names a proxy. A transport of our own would pass it over."""
    import urllib.request

    return bool(set(urllib.request.getproxies()) & {"http", "https", "all"})


def _as_response(body: JsonObject) -> JsonObject:
    """A chat body as a body of Responses."""
    sent = {
        name: value
        for name, value in body.items()
        if name not in ("messages", "max_tokens", "reasoning_effort", "response_format")
    }
    sent["input"] = body["messages"]
    if body.get("max_tokens") is not None:
        sent["max_output_tokens"] = body["max_tokens"]
    if body.get("reasoning_effort") is not None:
        sent["reasoning"] = {"effort": body["reasoning_effort"]}
    form = body.get("response_format")
    if isinstance(form, dict):
        schema = form.get("json_schema")
        sent["text"] = {
            "format": {"type": form["type"], **(schema if isinstance(schema, dict) else {})},
        }
    return sent


def _from_chat(document: Any) -> Answer:
    choice = document["choices"][0]
    message, usage = choice["message"], document.get("usage") or {}
    details = usage.get("completion_tokens_details") or {}
    return Answer(
        text=_text(message.get("content")),
        reasoning=_text(message.get("reasoning") or message.get("reasoning_content")),
        finish_reason=str(choice.get("finish_reason") or "stop"),
        usage=_usage(
            usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("reasoning_tokens")
        ),
    )


def _from_response(document: Any) -> Answer:
    status = document["status"]
    if status == "failed":
        error = document.get("error") or {}
        raise AskError(str(error.get("code") or "failed"), str(error.get("message") or "the answer failed"))
    texts, thoughts = [], []
    for item in document["output"]:
        parts = item.get("content") or []
        if item["type"] == "message":
            texts += [part["text"] for part in parts if part["type"] == "output_text"]
        elif item["type"] == "reasoning":
            thoughts += [part["text"] for part in parts or item.get("summary") or []]
    cut = (document.get("incomplete_details") or {}).get("reason")
    finish_reason = "stop" if status == "completed" else "length" if cut == "max_output_tokens" else cut
    usage = document.get("usage") or {}
    details = usage.get("output_tokens_details") or {}
    return Answer(
        text="".join(texts),
        reasoning="\n\n".join(thoughts),
        finish_reason=str(finish_reason or status),
        usage=_usage(usage.get("input_tokens"), usage.get("output_tokens"), details.get("reasoning_tokens")),
    )


def _text(value: Any) -> str:
    """Text of a message: as it is, or the texts of its parts."""
    if isinstance(value, list):
        return "".join(part["text"] for part in value if part.get("type") == "text")
    return value if isinstance(value, str) else ""


def _usage(prompt: Any, completion: Any, reasoning: Any) -> JsonObject:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "reasoning_tokens": reasoning}
    return {name: count if isinstance(count, int) else None for name, count in counts.items()}


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        shown = response.text[:80]
        raise AskError("bad_answer", f"the server sent something that is no JSON: {shown!r}") from None


def _reason(response: httpx.Response) -> str:
    """What the server says went wrong, on one line."""
    try:
        said = json.loads(response.content)
    except (ValueError, RecursionError):
        said = response.text[:200]
    while isinstance(said, dict):
        said = next((said[name] for name in ("error", "message", "detail") if said.get(name)), None)
    return " ".join(str(said or response.reason_phrase or "no reason").split())


def _asked_wait(response: httpx.Response, default: float) -> float:
    """The seconds that `Retry-After` asks for, as a number or as a time, at most a minute."""
    asked = response.headers.get("retry-after", "")
    try:
        seconds = float(asked)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
        except (ValueError, TypeError):
            return default
    return min(max(seconds, 0.0), _LONGEST_PAUSE) if seconds == seconds else default
