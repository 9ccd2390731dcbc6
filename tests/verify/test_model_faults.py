"""The stored numbers of transformers find faults of the served model, and none in what is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.compilation_cache import keep_compiled
from gptoss_jax.engine import Engine
from gptoss_jax.engine.slots import SlotTable
from gptoss_jax.llm import LLM
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.verify import behaviour, logits
from gptoss_jax.verify.golden import golden
from gptoss_jax.verify.rows import perform
from gptoss_jax.vocabulary import load_encoding_for
from tests import tiny_engine
from tests.verify.faults import FAULTS, injected

QUICKLY = ("gate and up swapped", "sinks of the wrong heads", "rotary pairs of neighbours")
SHORTEST = golden().answers[:1]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    keep_compiled()
    made, _, _ = load_engine("tiny", dtype=tiny_engine.DTYPE, **tiny_engine.OPTIONS)
    with made:
        yield made


@pytest.mark.slow
def test_the_embedded_model_is_within_the_bound_and_faults_are_far_beyond_it(engine: Engine) -> None:
    clean = logits.compare_stored(engine, "float32", SHORTEST)
    assert clean.passed, clean.measured
    assert clean.details["same_completions"] == 1
    for name in QUICKLY:
        with injected(engine, FAULTS[name]):
            faulty = logits.compare_stored(engine, "float32", SHORTEST)
        assert faulty.passed is False, name
        assert float(str(faulty.details["median_nats"])) > 100 * float(str(faulty.details["allowed_nats"])), (
            name
        )
    assert logits.compare_stored(engine, "float32", SHORTEST).passed


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FAULTS) - set(QUICKLY)))
def test_every_fault_of_the_parameters_is_found(engine: Engine, name: str) -> None:
    with injected(engine, FAULTS[name]):
        assert logits.compare_stored(engine, "float32", SHORTEST).passed is False


@pytest.mark.slow
def test_a_missing_stop_token_is_found_by_the_answer(engine: Engine) -> None:
    encoding = load_encoding_for(open_checkpoint("tiny"))
    right, table = engine._stop_tokens, engine._table
    engine._stop_tokens = frozenset({encoding.end_of_text})
    engine._table = SlotTable(engine._runner, engine._stop_tokens)
    try:
        llm = LLM.from_engine(engine, encoding, header_guard=False)
        (answer, *_) = behaviour.checks(llm)
        row = perform(answer)
    finally:
        engine._stop_tokens, engine._table = right, table
    assert row.status == "failed", row.measured
    assert "stop tokens" in row.meaning
