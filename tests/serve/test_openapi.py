"""The OpenAPI document: valid, about all addresses, and true, as machines that read it find out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from starlette.routing import Route

from gptoss_jax.batch_api import BatchApi, BatchSettings
from gptoss_jax.openai_api.body_schema import body_schema
from gptoss_jax.serve import ServerSettings, create_app
from gptoss_jax.serve.store import ResponseStore
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import DATE, serving
from tests.serve.test_scripted import ANSWER, NAMES, VALUES


def engine_for(encoding: HarmonyEncoding) -> FakeEngine:
    tokens = encoding.encode(ANSWER, allowed_special="all")
    return FakeEngine(lambda request, sample: Script(tokens), chunk=50, slots=64)


@pytest.fixture(scope="module")
def served(encoding: HarmonyEncoding, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with all its addresses, which answers whatever it can."""
    folder: Path = tmp_path_factory.mktemp("openapi")
    store = ResponseStore(folder / "store", max_bytes=10**7, max_age_seconds=10**5)
    batches = BatchApi(BatchSettings(folder / "data"), ServerSettings(model="tiny", date=DATE), {})
    with serving(engine_for(encoding), encoding, store, extensions=[batches], max_body_bytes=100_000) as url:
        yield url


def document_of(url: str) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{url}/openapi.json", timeout=60).json()
    return document


def test_the_document_is_valid_and_has_every_address(served: str, encoding: HarmonyEncoding) -> None:
    document = document_of(served)
    validate(document)
    batches = BatchApi(None, ServerSettings(), {})
    app = create_app(engine_for(encoding), encoding, ServerSettings(), extensions=[batches])
    app.state.client.close()
    addresses = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == addresses


def test_a_document_tells_only_of_what_is_served(scripted) -> None:
    server = scripted(ANSWER, settings={"page": False, "api_keys": ("k",)})
    assert httpx.get(f"{server.url}/openapi.json", timeout=60).status_code == 401
    answer = httpx.get(f"{server.url}/openapi.json", headers={"Authorization": "Bearer k"}, timeout=60)
    document = answer.json()
    validate(document)
    assert document["security"] == [{"key": []}]
    assert not {"/", "/v1/files", "/v1/batches"} & document["paths"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(NAMES))
def test_no_body_is_answered_that_the_document_forbids(served: str, form: str) -> None:
    path = "chat/completions" if form == "chat" else "responses"
    begin: Any = {"messages": [{"role": "user", "content": "Hi"}]} if form == "chat" else {"input": "Hi"}
    validator = jsonschema.Draft202012Validator(body_schema(form))
    forbidden, answered = 0, []
    with httpx.Client(base_url=f"{served}/v1", timeout=60) as client:
        for name in NAMES[form]:
            for value in VALUES:
                body = {**begin, name: value}
                if not validator.is_valid(body):
                    forbidden += 1
                    answer = client.post(f"/{path}", content=json.dumps(body).encode())
                    if answer.status_code not in (400, 422):
                        answered.append({name: value})
    assert answered == []
    assert forbidden > 300


def run_machine(url: str, examples: int) -> int:
    """Sends generated requests of every operation. Returns how many."""
    load_all_checks()
    checks = [
        schemathesis.checks.CHECKS.get_one(name)
        for name in (
            "not_a_server_error",
            "status_code_conformance",
            "content_type_conformance",
            "response_schema_conformance",
        )
    ]
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    sent = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @_given(operation)
        def send(case: Any) -> None:
            nonlocal sent
            sent += 1
            case.call_and_validate(checks=checks, timeout=60)

        send()
    return sent


def _given(operation: Any) -> Any:

    right, wrong = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)
    return given(case=st.one_of(right, wrong))


def test_requests_that_a_machine_makes_of_the_document_get_what_it_promises(served: str) -> None:
    assert run_machine(served, 1) > 10


@pytest.mark.slow
def test_two_thousand_requests_that_a_machine_makes_get_what_the_document_promises(served: str) -> None:
    assert run_machine(served, 130) >= 2000
    assert httpx.get(f"{served}/health", timeout=60).status_code == 200
