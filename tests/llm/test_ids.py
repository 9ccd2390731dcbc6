"""A prompt's own name decides its random numbers: not its place, its company or its process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gptoss_jax import LLM, RequestError, SamplingParams
from gptoss_jax.batch import run_batch
from tests import tiny_engine

ROOT = Path(__file__).parents[2]
ROWS = {f"row {i}": f"What is {100 + i} + {3 * i}?" for i in range(8)}
HOT = SamplingParams(temperature=1.5, max_tokens=12)


@pytest.fixture
def seeds(answering: Callable[..., LLM]) -> Callable[..., dict[str, tuple[int, int]]]:
    """Gives the seed that the engine draws with for each prompt's text."""

    def seeds(prompts: dict[str, str], sampling: SamplingParams = HOT, seed: int = 0) -> dict:
        drawn = {}

        def answer(request, sample: int) -> str:
            drawn[llm.encoding.decode(request.prompt)] = request.seed_words(sample)
            return "<|channel|>final<|message|>Yes.<|return|>"

        llm = answering(answer)
        llm._seed = seed
        outputs = llm.generate(list(prompts.values()), sampling, ids=list(prompts), date="2025-06-28")
        assert [output.id for output in outputs] == list(prompts)
        return drawn

    return seeds


def test_the_order_and_the_company_of_prompts_do_not_matter(seeds) -> None:
    together = seeds(ROWS)
    assert len(set(together.values())) == len(ROWS)
    assert seeds(dict(reversed(ROWS.items()))) == together
    alone: dict = {}
    for id, prompt in ROWS.items():
        alone |= seeds({id: prompt})
    assert alone == together


def test_another_id_or_another_seed_draws_anew_and_a_seed_of_ones_own_stays(seeds) -> None:
    (first,), (other_id,), (other_seed,) = (
        seeds({"a": "Hi"}).values(),
        seeds({"b": "Hi"}).values(),
        seeds({"a": "Hi"}, seed=1).values(),
    )
    assert len({first, other_id, other_seed}) == 3
    assert list(seeds({"a": "Hi"}, SamplingParams(seed=5)).values()) == [(0, 5)]


def test_the_same_id_may_run_twice_at_a_time_and_streams_draw_the_same(answering) -> None:
    drawn = []

    def answer(request, sample: int) -> str:
        drawn.append((request.id, request.seed_words()))
        call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
        return call

    llm = answering(answer)

    async def both() -> list:
        return await asyncio.gather(*(llm.agenerate("Hi", HOT, ids=7) for _ in range(2)))

    first, second = (outputs[0] for outputs in asyncio.run(both()))
    with llm.stream("Hi", HOT, id="7") as stream:
        assert list(stream)
    assert {first.id, second.id, stream.id, stream.generation.id} == {"7"}
    numbers, seeds = zip(*drawn, strict=True)
    assert (len(set(numbers)), len(set(seeds))) == (3, 1)
    # What is made of an id, such as a call's, is made of the row's own.
    calls = {output.sample.tool_calls[0].id for output in (first, second, stream.generation)}
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("prompts", "ids", "words"),
    [
        (["a", "b"], ["x"], "ids has 1 entries for 2 prompts"),
        (["a", "b"], "x", "ids has 1 entries for 2 prompts"),
        (["a", "b"], [7, "7"], "ids[1] is '7', as ids[0] is"),
        (["a", "b"], ["x", ""], "ids[1] is ''"),
        (["a", "b"], ["x", None], "ids[1] is None"),
        (["a"], [True], "ids[0] is True"),
        ("a", 1.5, "ids is 1.5"),
    ],
)
def test_ids_that_name_nothing_are_refused_in_one_line(answering, prompts, ids, words) -> None:
    llm = answering("<|channel|>final<|message|>Yes.<|return|>")
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, ids=ids)
    assert words in str(caught.value) and "\n" not in str(caught.value)


PROCESS = """
import json, sys
from gptoss_jax import LLM, SamplingParams
from tests import tiny_engine
rows = json.load(sys.stdin)
with LLM("tiny", dtype=tiny_engine.DTYPE, seed=3, **tiny_engine.OPTIONS) as llm:
    outputs = llm.generate(
        list(rows.values()), SamplingParams(temperature=1.5, max_tokens=12), ids=list(rows), date="2025-06-28"
    )
print(json.dumps({output.id: output.tokens for output in outputs}))
"""


@pytest.mark.slow
def test_alone_in_any_order_in_two_processes_and_as_a_resumed_batch_a_row_gets_the_same_sample(
    tmp_path,
) -> None:
    """The promise of docs/batch.md, on the embedded model."""
    items = list(ROWS.items())
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        input=json.dumps(ROWS),
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    with LLM("tiny", dtype=tiny_engine.DTYPE, seed=3, **tiny_engine.OPTIONS) as llm:
        backwards = llm.generate(
            [prompt for _, prompt in reversed(items)],
            HOT,
            ids=[id for id, _ in reversed(items)],
            date="2025-06-28",
        )
        assert {output.id: output.tokens for output in backwards} == found
        texts = {output.id: output.sample.messages for output in backwards}
        (alone,) = llm.generate(ROWS["row 6"], HOT, ids="row 6", date="2025-06-28")
        assert alone.tokens == found["row 6"]
        engine, encoding = llm._engine, llm.encoding
        source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text("".join(json.dumps({"id": id, "prompt": text}) + "\n" for id, text in items))
        for _ in range(2):
            run_batch(source, out, engine=engine, encoding=encoding, seed=3, sampling=HOT, date="2025-06-28")
            rows = [json.loads(line) for line in out.read_bytes().splitlines()]
            # The second time, half of the rows are gone, as after a kill.
            out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:4]))
            assert {row["id"]: row["messages"] for row in rows} == {
                id: [message.to_dict() for message in messages] for id, messages in texts.items()
            }
