from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.request import Request
from gptoss_jax.llm import LLM
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding
from tests.llm.fake_engine import FakeEngine, Script


@pytest.fixture(scope="module", autouse=True)
def no_cache_at_home() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPTOSS_JAX_CACHE", "")
        yield


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture
def tokens_of(encoding: HarmonyEncoding) -> Callable[[str], list[int]]:
    """A completion's tokens from its text, special tokens spelled out."""
    return lambda text: encoding.encode(text, allowed_special="all")


@pytest.fixture
def endless(tokens_of: Callable[[str], list[int]]) -> Script:
    """What takes the fake engine minutes to say."""
    return Script(tokens_of("<|channel|>final<|message|>So") + tokens_of(" the") * 1_000_000)


@pytest.fixture
def answering(encoding: HarmonyEncoding) -> Iterator[Callable[..., LLM]]:
    """Makes an LLM whose every completion is a text, a script, or what a function of the request says."""
    made: list[LLM] = []

    def make(answer: str | Script | Callable[[Request, int], str | Script], **options: Any) -> LLM:
        def script(request: Request, sample: int) -> Script:
            said = answer(request, sample) if callable(answer) else answer
            if isinstance(said, Script):
                return said
            return Script(encoding.encode(said, allowed_special="all"))

        made.append(LLM.from_engine(FakeEngine(script, **options), encoding, "fake"))
        return made[-1]

    yield make
    for llm in made:
        llm._engine.gate.set()  # type: ignore[attr-defined]
        llm.close()
