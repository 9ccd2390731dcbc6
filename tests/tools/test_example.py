"""The example with a back end of its own."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from checkpoints import open_checkpoint
from gptoss_jax.llm import LLM
from gptoss_jax.tools.browser.tool import BrowserTool
from gptoss_jax.vocabulary import load_encoding_for
from tests.llm.fake_engine import FakeEngine, Script

FILE = Path(__file__).parents[2] / "examples" / "built_in_tools.py"
TURNS = (
    '<|channel|>analysis to=browser.search code<|message|>{"query": "tea"}<|call|>',
    '<|channel|>analysis to=browser.open code<|message|>{"id": 0}<|call|>',
    "<|channel|>final<|message|>Two minutes.<|return|>",
)


def test_the_example_runs_calls_until_the_model_answers() -> None:
    spec = importlib.util.spec_from_file_location("built_in_tools_example", FILE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    encoding = load_encoding_for(open_checkpoint("tiny"))
    turns = iter(TURNS)
    engine = FakeEngine(lambda request, sample: Script(encoding.encode(next(turns), allowed_special="all")))
    with LLM.from_engine(engine, encoding, "fake") as llm:
        said = asyncio.run(example.answer(llm, "How long does tea take?", [BrowserTool(example.Notes())]))
    assert said == "Two minutes."
    prompts = [encoding.decode(request.prompt) for request in engine.requests.values()]
    assert "namespace browser {" in prompts[0] and "L3: Green tea takes two minutes." in prompts[2]
