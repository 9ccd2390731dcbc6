"""Limits on the time of a request and on its reasoning."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from gptoss_jax.engine.request import Update
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import Scripted, serving
from tests.serve.test_scripted import ANSWER, LONG, events_of


class StuckEngine(FakeEngine):
    """Says the first tokens of its first `talkative` requests, and then nothing more."""

    talkative = 3

    def _advance(self, running: Any) -> Update:
        if running.told > 12 or running.request.id not in list(self.requests)[: self.talkative]:
            return Update(running.request.id, running.sample, [])
        return super()._advance(running)


@pytest.fixture
def stuck(encoding: HarmonyEncoding) -> Iterator[Any]:
    servers = []
    tokens = encoding.encode(LONG, allowed_special="all")

    def start(**options: Any) -> Scripted:
        engine = StuckEngine(lambda request, sample: Script(tokens), **options)
        server = serving(engine, encoding, max_seconds=2.0)
        servers.append(server)
        return Scripted(server.__enter__(), engine, encoding)

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def test_an_answer_whose_time_is_up_ends_with_what_there_is(stuck) -> None:
    server = stuck()
    with ThreadPoolExecutor(3) as pool:
        answers = [
            pool.submit(server.chat),
            pool.submit(server.responses),
            pool.submit(server.responses, stream=True),
        ]
        chat, response, stream = [answer.result() for answer in answers]
    completion = ChatCompletion.model_validate(chat.json())
    assert completion.choices[0].finish_reason == "length"
    assert (completion.choices[0].message.content or "").startswith("and so on")
    whole = Response.model_validate(response.json())
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.output_text.startswith("and so on")
    last = json.loads(events_of(stream)[-1])
    assert last["type"] == "response.incomplete"
    assert last["response"]["usage"]["output_tokens"] > 0
    server.wait_until_idle()
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()


def test_a_request_that_only_waited_is_told_to_come_back(stuck) -> None:
    """One runs, one waits in the engine, one waits before it."""
    server = stuck(slots=1)
    server.engine.talkative = 1

    def ask() -> httpx.Response:
        return server.chat()

    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(ask)]
        end = time.monotonic() + 20
        while not server.engine.unfinished:
            assert time.monotonic() < end
            time.sleep(0.005)
        answers += [pool.submit(ask), pool.submit(ask)]
        statuses = [answer.result().status_code for answer in answers]
    assert statuses == [200, 429, 429]
    assert answers[1].result().json()["error"]["code"] == "server_busy"
    assert answers[2].result().headers["retry-after"] == "5"
    server.wait_until_idle()


def test_reasoning_leaves_room_for_an_answer_unless_a_request_says_otherwise(scripted) -> None:
    server = scripted(ANSWER, settings={"reasoning_share": 0.75})

    def budget(**fields: Any) -> int | None:
        assert server.chat(**fields).status_code == 200
        (*_, request) = server.engine.requests.values()
        return request.sampling.reasoning_budget

    assert budget() == int((2000 - len(server.prompt())) * 0.75)
    assert budget(max_tokens=1999) == budget()
    assert budget(max_tokens=50) is None  # which ends it before
    assert budget(reasoning={"max_tokens": 7}) == 7
    assert budget(thinking_token_budget=9) == 9
    assert budget(thinking_token_budget=-1) is None
    assert budget(thinking_token_budget=-1, reasoning={"max_tokens": 7}) == 7


@pytest.mark.slow
def test_a_model_that_stops_thinking_by_itself_says_the_same_without_a_limit(client: OpenAI) -> None:
    for seed in range(4):
        said = [
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "What is 12 + 30?"}],
                seed=seed,
                extra_body=extra,
            )
            for extra in ({}, {"thinking_token_budget": -1})
        ]
        assert said[0].choices[0].message == said[1].choices[0].message
        assert said[0].usage.completion_tokens == said[1].usage.completion_tokens
