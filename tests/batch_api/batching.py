"""Servers with files and batches, on scripted engines."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
from openai import OpenAI
from openai.types import Batch, FileObject

from gptoss_jax.engine.request import Request
from harmony import HarmonyEncoding
from tests.llm.fake_engine import Script

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ENDS = {"completed", "failed", "expired", "cancelled"}


def row(id: str, said: str, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    """A line of an input file."""
    body = {"messages": [{"role": "user", "content": said}]} if url == CHAT else {"input": said}
    return {"custom_id": id, "method": "POST", "url": url, "body": {**body, **fields}}


def lines(rows: list[Any]) -> bytes:
    """An input file: bytes as they are, anything else as JSON."""
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in rows)


def echo(encoding: HarmonyEncoding) -> Callable[[Request, int], Script]:
    """Answers with what the last user message says; to "long" at length."""

    def script(request: Request, sample: int) -> Script:
        said = (
            encoding.decode(request.prompt).rpartition("<|start|>user<|message|>")[2].partition("<|end|>")[0]
        )
        if said.startswith("long"):
            said += " and so on" * 200
        text = (
            f"<|channel|>analysis<|message|>Secret.<|end|><|start|>assistant<|channel|>final<|message|>{said}"
        )
        return Script(encoding.encode(f"{text}<|return|>", allowed_special="all"))

    return script


class Client:
    """What tests ask of a server. Objects are checked strictly by the SDK's own types."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=f"{url}/v1", timeout=30)
        self.sdk = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def close(self) -> None:
        self.http.close()
        self.sdk.close()

    def upload(self, content: bytes, name: str = "in.jsonl", **fields: Any) -> FileObject:
        return self.sdk.files.create(file=(name, io.BytesIO(content)), purpose="batch", **fields)

    def start(self, rows: list[Any], endpoint: str = CHAT, **fields: Any) -> Batch:
        """Uploads the rows, and makes a batch of them."""
        id = self.upload(lines(rows)).id
        fields = {"input_file_id": id, "endpoint": endpoint, "completion_window": "24h", **fields}
        return self.sdk.batches.create(**fields)

    def batch(self, id: str) -> Batch:
        answer = self.http.get(f"/batches/{id}")
        return Batch.model_validate_json(answer.raise_for_status().text, strict=True)

    def until(self, id: str, good: Callable[[Batch], bool], seconds: float = 60.0) -> Batch:
        """The batch, as soon as it is as it should be."""
        end = time.monotonic() + seconds
        while not good(batch := self.batch(id)):
            assert time.monotonic() < end, batch
            time.sleep(0.01)
        return batch

    def ended(self, id: str) -> Batch:
        return self.until(id, lambda batch: batch.status in ENDS)

    def rows(self, file: str | None) -> dict[str, dict[str, Any]]:
        """The rows of a file by custom_id; one that comes twice fails."""
        if file is None:
            return {}
        found = [json.loads(line) for line in self.sdk.files.content(file).content.splitlines()]
        by_id = {one["custom_id"]: one for one in found}
        assert len(by_id) == len(found)
        return by_id
