"""What `/metrics`, `/health` and `/ready` tell."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from gptoss_jax.engine.request import Request
from harmony import HarmonyEncoding
from tests import tiny_engine
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving


def figures(url: str) -> dict[str, float]:
    """Every figure by its name, with the value of its only label, if it has one."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = next(iter(sample.labels.values()), "")
            found[sample.name.removeprefix("gptoss_jax_") + (f":{label}" if label else "")] = sample.value
    return found


@pytest.mark.slow
def test_slots_pages_and_prefix_hits_are_told(tiny_url: str, client: OpenAI) -> None:
    messages = [{"role": "user", "content": "Say something about numbers. " * 14}]
    before = figures(tiny_url)
    for _ in range(4):  # what several prompts begin with is kept
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    after = figures(tiny_url)
    assert after["prefix_cache_hits_total"] > before["prefix_cache_hits_total"]
    queries = after["prefix_cache_queries_total"] - before["prefix_cache_queries_total"]
    assert queries == after["tokens_total:prompt"] - before.get("tokens_total:prompt", 0)
    assert after["pages:cached"] > before["pages:cached"]
    pages = [sum(told[f"pages:{state}"] for state in ("used", "cached", "free")) for told in (before, after)]
    assert pages[0] == pages[1]
    with client.chat.completions.create(
        model="tiny", messages=messages, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        time_limit = time.monotonic() + 60
        while (during := figures(tiny_url))["num_requests_running"] != 1:
            assert time.monotonic() < time_limit
        assert during["pages:used"] > 0
        assert during["kv_cache_usage"] == during["pages:used"] / pages[0]
    time_limit = time.monotonic() + 60
    while (idle := figures(tiny_url))["num_requests_running"]:
        assert time.monotonic() < time_limit
        time.sleep(0.01)
    assert (idle["pages:used"], idle["num_requests_waiting"], idle["kv_cache_usage"]) == (0, 0, 0)
    assert idle["slots"] == tiny_engine.OPTIONS["slots"]
    assert idle["num_preemptions_total"] == before["num_preemptions_total"]


class SlowToPrepare(FakeEngine):
    """Its checks, in which grammars are made, wait to be let go."""

    prepared = threading.Event()

    def check(self, request: Request) -> None:
        assert self.prepared.wait(60)
        super().check(request)


def test_a_server_is_ready_only_when_its_grammars_are_made(encoding: HarmonyEncoding) -> None:
    engine = SlowToPrepare(lambda request, sample: Script(encoding.encode("Hi")))
    with serving(engine, encoding) as url:
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        refused = httpx.get(f"{url}/ready", timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        engine.prepared.set()
        end = time.monotonic() + 60
        while httpx.get(f"{url}/ready", timeout=60).status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
