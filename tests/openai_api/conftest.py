from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.grammar import GrammarCompiler
from gptoss_jax.engine.request import Request, SamplingParams
from gptoss_jax.openai_api import Context, Prepared, prepare
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding


class Checker:
    """What is asked of an engine before a request is queued; it compiles grammars, as the engine does."""

    max_length = 2000

    def __init__(self, encoding: HarmonyEncoding) -> None:
        self.compiler = GrammarCompiler(encoding, encoding.size)

    def check(self, request: Request) -> None:
        if request.sampling.grammar is not None:
            self.compiler.check(request.sampling.grammar)


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture(scope="session")
def checker(encoding: HarmonyEncoding) -> Checker:
    return Checker(encoding)


@pytest.fixture
def prepared(encoding: HarmonyEncoding, checker: Checker) -> Callable[..., Prepared]:
    """Prepares a body of one short message and the given fields."""

    def read(form: Any, /, fields: dict[str, Any], **options: Any) -> Prepared:
        body = {"input": "Hi"} if form == "responses" else {"messages": [{"role": "user", "content": "Hi"}]}
        context = Context(checker, encoding, SamplingParams(), None, "2026-01-01", **options)
        return prepare({**body, **fields}, form, context, id="x", seed=1)

    return read
