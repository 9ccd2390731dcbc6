"""Answers from servers: both APIs of ours over HTTP, and servers that fail, hesitate or answer nonsense."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.request import Request, SamplingParams
from gptoss_jax.evals.remote import ServerModel
from gptoss_jax.evals.samplers import AskError, LocalModel
from gptoss_jax.evals.types import EvaluationError
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests.cli.command_runner import run
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

SAID = (
    "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant"
    "<|channel|>final<|message|>\\boxed{69}<|return|>"
)
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "How many?"}],
    "reasoning_effort": "high",
    "temperature": 0.5,
    "seed": 77,
}


@pytest.fixture(scope="module")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture
def engine(encoding: HarmonyEncoding) -> FakeEngine:
    tokens = encoding.encode(SAID, allowed_special="all")
    return FakeEngine(lambda request, sample: Script(tokens))


@pytest.fixture
def cut_engine(encoding: HarmonyEncoding) -> FakeEngine:
    tokens = encoding.encode("<|channel|>analysis<|message|>Think, and", allowed_special="all")
    return FakeEngine(lambda request, sample: Script(tokens, "length"))


def asked(engine: FakeEngine) -> Request:
    return list(engine.requests.values())[-1]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_a_server_answers_as_the_engine_in_this_process_does(api, engine, encoding) -> None:
    with serving(engine, encoding) as url, ServerModel(f"{url}/v1", api=api) as server:
        assert server.name == "tiny"
        remote, remotely = server(BODY), asked(engine)
    local_engine = FakeEngine(lambda request, sample: Script(encoding.encode(SAID, allowed_special="all")))
    with LocalModel(local_engine, encoding, sampling=SamplingParams(), date="2026-01-01") as model:
        local, locally = model(BODY), asked(local_engine)
    assert (remote.text, remote.reasoning, remote.finish_reason) == ("\\boxed{69}", "Think.", "stop")
    assert remote == local
    assert remotely.prompt == locally.prompt and remotely.sampling == locally.sampling
    assert (locally.sampling.seed, locally.sampling.temperature) == (77, 0.5)
    assert "Reasoning: high" in encoding.decode(locally.prompt)
    assert local.usage["reasoning_tokens"] == len(encoding.encode("Think."))


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_a_cut_answer_is_a_length(api, cut_engine, encoding) -> None:
    with serving(cut_engine, encoding) as url, ServerModel(f"{url}/v1", api=api) as server:
        answer = server({**BODY, "max_tokens": 5})
    assert (answer.text, answer.finish_reason) == ("", "length") and "Think" in answer.reasoning
    assert asked(cut_engine).sampling.max_tokens == 5


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_a_run_against_a_server_has_the_rows_of_its_answers(api, engine, encoding, tmp_path) -> None:
    out = tmp_path / "o.jsonl"
    with serving(engine, encoding) as url:
        done = run(
            *("eval", "aime", "--data", "sample", "--output", str(out), "--attempts", "2"),
            *("--url", f"{url}/v1", "--api", api),
        )
    assert done.code == 0, done.error
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert sorted(row["line"] for row in rows) == list(range(1, 7))
    assert {row["harness"]["answer"] for row in rows} == {"69"}
    assert sum(row["strict"]["score"] for row in rows) == 2
    assert len({request.sampling.seed for request in engine.requests.values()}) == 6
    assert json.loads((tmp_path / "o.jsonl.run.json").read_bytes())["model"] == "tiny"


def test_a_prompt_that_is_too_long_fails_alone(encoding) -> None:
    engine = FakeEngine(lambda request, sample: Script([1]), max_length=20)
    with (
        LocalModel(engine, encoding, sampling=SamplingParams(), date="2026-01-01") as model,
        pytest.raises(AskError, match="tokens") as error,
    ):
        model(BODY)
    assert error.value.code == "context_length_exceeded"


CHAT = {"choices": [{"message": {"content": "A"}, "finish_reason": "stop"}]}
Reply = tuple[int, Any, dict[str, str]] | None


@contextlib.contextmanager
def answering(*replies: Reply) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers so, one after the other; None closes the connection. Yields what it was asked."""
    waiting, bodies = list(replies), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            reply = waiting.pop(0)
            if reply is None:
                self.close_connection = True
                return
            status, document, headers = reply
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asking(url: str, pauses: list[float] | None = None, **options: Any) -> Callable[[], Any]:
    pause = (lambda seconds: None) if pauses is None else pauses.append
    server = ServerModel(url, "m", **{"api": "chat", "retries": 3, "pause": pause, **options})

    def ask() -> Any:
        with server:
            return server(BODY)

    return ask


def test_what_may_pass_is_tried_again_after_longer_and_longer_pauses() -> None:
    pauses: list[float] = []
    with answering((503, {}, {}), None, (429, {}, {"retry-after": "7"}), (200, CHAT, {})) as (url, bodies):
        assert asking(url, pauses)().text == "A"
    assert bodies == [{"model": "m", **BODY}] * 4
    assert 0.75 <= pauses[0] <= 1 and 1.5 <= pauses[1] <= 2 and pauses[2] == 7


def test_it_is_not_tried_for_ever() -> None:
    error = {"error": {"message": "too\nmany", "code": 1}}
    with answering(*[(500, error, {"retry-after": "nan"})] * 4) as (url, bodies):
        with pytest.raises(AskError, match="too many") as caught:
            asking(url)()
        assert len(bodies) == 4 and caught.value.code == "http_500"
    with pytest.raises(EvaluationError, match="is not reached"):
        asking(url)()


@pytest.mark.parametrize(
    ("status", "document", "error", "words"),
    [
        (400, {"error": {"message": "too long"}}, AskError, "too long"),
        (400, {"error": {"message": "Unknown parameter: 'seed'."}}, EvaluationError, "give --no-seed"),
        (401, {"error": "who?"}, EvaluationError, "the key is refused"),
        (404, b"<html>", EvaluationError, "there is no such address or model"),
        (307, b"", EvaluationError, "has moved to elsewhere"),
        (200, b"<html>", AskError, "no JSON"),
        (200, {}, AskError, "none of the chat API"),
        (200, [], AskError, "none of the chat API"),
        (200, {"choices": []}, AskError, "none of the chat API"),
        (200, {"choices": [{"message": None}]}, AskError, "none of the chat API"),
    ],
)
def test_what_will_not_pass_is_not_tried_again(status, document, error, words) -> None:
    with (
        answering((status, document, {"location": "elsewhere"})) as (url, bodies),
        pytest.raises(error, match=words),
    ):
        asking(url)()
    assert len(bodies) == 1


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": None}, "", ""),
        ({"content": "A", "reasoning_content": "Hm"}, "A", "Hm"),
        ({"content": "A", "reasoning": "Hm", "reasoning_content": "Hm"}, "A", "Hm"),
        ({"content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}, "AB", ""),
    ],
)
def test_answers_of_other_servers_are_read(message, text, reasoning) -> None:
    with answering((200, {"choices": [{"message": message, "finish_reason": None}]}, {})) as (url, _):
        answer = asking(url)()
    assert (answer.text, answer.reasoning, answer.finish_reason) == (text, reasoning, "stop")
    assert answer.usage == {"prompt_tokens": None, "completion_tokens": None, "reasoning_tokens": None}


def test_a_response_that_failed_is_an_error() -> None:
    failed = {"status": "failed", "error": {"code": "server_error", "message": "broken"}, "output": []}
    with answering((200, failed, {})) as (url, bodies), pytest.raises(AskError, match="broken") as error:
        asking(url, api="responses")()
    assert error.value.code == "server_error"
    assert bodies[0]["reasoning"] == {"effort": "high"} and bodies[0]["input"] == BODY["messages"]


@pytest.mark.parametrize("url", ["localhost:8000", "http://[", "http://127.0.0.1:1/v1", "ftp://x"])
def test_an_address_that_is_none_is_one_line(url, tmp_path) -> None:
    done = run("eval", "aime", "--data", "sample", "--output", str(tmp_path / "o.jsonl"), "--url", url)
    assert done.code == 2 and done.error.splitlines()[-1].startswith("gptoss-jax: ")
    assert "Traceback" not in done.error
