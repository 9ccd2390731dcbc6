"""Structured output through the whole engine: random weights, hot, under many schemas."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import jsonschema
import pytest
from flax import nnx

from checkpoints import open_checkpoint
from gptoss_jax.engine import Engine, Request, RequestError, SamplingParams
from gptoss_jax.engine.grammar import Grammar, GrammarError
from gptoss_jax.model import GptOss, Transformer
from gptoss_jax.vocabulary import load_encoding_for
from harmony import Role, parse_completion
from tests.engine.engine_model import CONFIG
from tests.engine.engine_model import make_engine as make_any_engine
from tests.engine.grammar_schemas import SchemaMaker, validate

SCHEMAS, MANY_SCHEMAS = 45, 300
ENCODING = load_encoding_for(open_checkpoint("tiny"))
ROWS = ENCODING.size + 65
PROMPT = ENCODING.encode("<|start|>user<|message|>Go.<|end|><|start|>assistant", allowed_special="all")
STOPS = [*ENCODING.stop_tokens_for_assistant_actions(), ENCODING.end_of_text]
SPECIAL = {ENCODING.start, ENCODING.channel, ENCODING.message, *ENCODING.stop_tokens()}
# A model that knows nothing seldom ends anything; this makes it.
CLOSING = {ENCODING.encode(text)[0]: 3.0 for text in ('"', "}", "]", ",", ":", "1", "e")} | {
    token: 6.0 for token in ENCODING.stop_tokens()
}
HOT = SamplingParams(temperature=1.5, reasoning_budget=4, max_tokens=160, logit_bias=CLOSING)


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Random weights, and the embedded checkpoint's vocabulary with rows to spare."""
    config = dataclasses.replace(CONFIG, vocabulary_size=ROWS)
    return Transformer(GptOss(config, dtype=jnp.float32, rngs=nnx.Rngs(2)))


def make_engine(model: Transformer, **options: int) -> Engine:
    options = {"slots": 16, "max_length": 256, "decode_steps": 8, "prefill_tokens": 64} | options
    return make_any_engine(STOPS, model, encoding=ENCODING, page_size=64, **options)


@pytest.fixture(scope="module")
def engine(model: Transformer) -> Engine:
    return make_engine(model)


def with_schema(number: int, schema: dict) -> Request:
    return Request(str(number), PROMPT, dataclasses.replace(HOT, grammar=Grammar.json_schema(schema)))


@pytest.fixture(scope="module")
def requests(engine: Engine) -> dict[str, tuple[Request, dict]]:
    """Some that the grammar library supports."""
    return supported(engine, SCHEMAS)


def supported(engine: Engine, count: int) -> dict[str, tuple[Request, dict]]:
    """The first random schemas that the grammar library supports, each as a request."""
    found: dict[str, tuple[Request, dict]] = {}
    seed = 1000
    while len(found) < count:
        schema, seed = SchemaMaker(seed).make(), seed + 1
        request = with_schema(seed, schema)
        try:
            engine.check(request)
        except GrammarError:
            continue
        found[request.id] = request, schema
    return found


def test_every_document_that_completes_is_valid(
    engine: Engine, requests: dict[str, tuple[Request, dict]]
) -> None:
    check_documents(engine, requests)


@pytest.mark.slow
def test_every_document_of_many_schemas_that_completes_is_valid(engine: Engine) -> None:
    check_documents(engine, supported(engine, MANY_SCHEMAS))


def check_documents(engine: Engine, requests: dict[str, tuple[Request, dict]]) -> None:
    """Completes all requests, and validates each complete document by the `jsonschema` package."""
    complete = 0
    for completion in engine.run([request for request, _ in requests.values()]):
        _, schema = requests[completion.id]
        if not completion.grammar_complete:
            assert completion.finish_reason == "length"
            continue
        complete += 1
        parsed = parse_completion(ENCODING, completion.tokens, role=Role.ASSISTANT)
        final = parsed.messages[-1]
        assert final.channel == "final"
        try:
            validate(final.content[0].text, schema)
        except (ValueError, jsonschema.ValidationError) as error:
            pytest.fail(f"{completion.id}: {final.content[0].text!r} does not meet {schema}: {error}")
    assert complete > len(requests) * 3 // 5


def test_rows_under_a_grammar_neither_change_nor_slow_the_others(
    model: Transformer, requests: dict[str, tuple[Request, dict]]
) -> None:
    engine = make_engine(model)
    free = [
        Request(f"free {number}", [*PROMPT, 40 + number], SamplingParams(seed=number, max_tokens=64))
        for number in range(4)
    ]
    bound = [request for request, _ in list(requests.values())[:4]]
    alone = {completion.id: completion.tokens for completion in engine.run(free)}
    bound_alone = {completion.id: completion.tokens for completion in engine.run(bound)}
    before = engine.statistics.copy()
    together = {completion.id: completion.tokens for completion in engine.run([*free, *bound])}
    assert {name: together[name] for name in alone} == alone
    assert {name: together[name] for name in bound_alone} == bound_alone
    # A token in each dispatch for those under a grammar, eight for the others.
    longest = max(map(len, bound_alone.values()))
    assert (engine.statistics - before).dispatches <= longest + 12
    assert (engine.statistics - before).refused_tokens > 0


@pytest.mark.slow
def test_tokens_do_not_depend_on_how_many_are_drawn_in_a_dispatch(
    model: Transformer, requests: dict[str, tuple[Request, dict]]
) -> None:
    chosen = [
        dataclasses.replace(
            request, sampling=dataclasses.replace(request.sampling, top_p=0.7, frequency_penalty=0.4)
        )
        for request, _ in list(requests.values())[4:10]
    ]
    found = [
        {completion.id: completion.tokens for completion in engine.run(chosen)}
        for engine in (make_engine(model, decode_steps=steps) for steps in (1, 8))
    ]
    assert found[0] == found[1]


def test_the_reasoning_budget_moves_the_model_to_final(engine: Engine) -> None:
    talkative = dict.fromkeys([*ENCODING.stop_tokens(), ENCODING.channel, ENCODING.start], -100.0)
    analysis = [*PROMPT, *ENCODING.encode("<|channel|>analysis<|message|>", allowed_special="all")]
    sampling = SamplingParams(reasoning_budget=10, max_tokens=40, logit_bias=talkative)
    (completion,) = engine.run([Request("talk", analysis, sampling)])
    forced = ENCODING.encode("<|end|><|start|>assistant<|channel|>final<|message|>", allowed_special="all")
    assert completion.tokens[10 : 10 + len(forced)] == forced
    assert len(completion.tokens) == 40
    assert ENCODING.end not in completion.tokens[:10]


def test_stop_strings_end_a_completion_and_their_text_is_named(engine: Engine) -> None:
    final = [*PROMPT, *ENCODING.encode("<|channel|>final<|message|>", allowed_special="all")]
    sampling = SamplingParams(seed=4, max_tokens=100)
    (whole,) = engine.run([Request("whole", final, sampling)])
    content = whole.tokens[: next((i for i, one in enumerate(whole.tokens) if one in SPECIAL), None)]
    texts = [ENCODING.token_bytes(token) or b"?" for token in content]
    place, stop = next((i, b.decode()) for i, b in enumerate(texts) if i > 3 and b.isalpha() and b.isascii())
    (cut,) = engine.run([Request("cut", final, dataclasses.replace(sampling, stop=["never in it", stop]))])
    assert (cut.finish_reason, cut.stop) == ("stop", stop)
    assert cut.tokens == content[: len(cut.tokens)]
    assert len(cut.tokens) <= place + 1
    joined = [b"".join(texts[: len(cut.tokens) - missing]) for missing in (0, 1)]
    assert [stop.encode() in text for text in joined] == [True, False]


def test_a_schema_that_is_not_supported_is_refused_with_the_reason(engine: Engine) -> None:
    with pytest.raises(RequestError) as caught:
        engine.check(with_schema(0, {"type": "object", "not": {"type": "object"}}))
    assert "not" in str(caught.value)
    assert "\n" not in str(caught.value)
