"""Documents sampled under a schema's grammar, judged by the `jsonschema` package."""

from __future__ import annotations

import jsonschema
import numpy as np
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.grammar import Grammar, GrammarCompiler, GrammarError
from gptoss_jax.vocabulary import load_encoding_for
from tests.engine.grammar_schemas import RandomModel, SchemaMaker, validate

SCHEMAS = 320
ENCODING = load_encoding_for(open_checkpoint("tiny"))
ROWS = ENCODING.size + 65
COMPILER = GrammarCompiler(ENCODING, ROWS)
HEADER = ENCODING.encode("<|channel|>final<|message|>", allowed_special="all")


def sampled(schema, seed, **model):
    """A random document of a schema, and the matcher that stands behind it."""
    matcher = COMPILER.compile(Grammar.json_schema(schema), reasoning=False)
    assert matcher.force(HEADER)
    tokens = RandomModel(ENCODING, ROWS, **model).complete(matcher, np.random.default_rng(seed))
    # One that was cut may end within a character.
    return ENCODING.decode(token for token in tokens if token != ENCODING.return_), matcher


@pytest.mark.slow
def test_every_document_that_completes_is_valid_with_random_weights_at_high_temperatures():
    complete, refused, tried = 0, [], 0
    for seed in range(SCHEMAS):
        schema = SchemaMaker(seed).make()
        try:
            text, matcher = sampled(schema, seed, temperature=2.0 if seed % 2 else 1.5)
        except GrammarError as error:
            refused.append((schema, str(error)))
            continue
        tried += 1
        if not matcher.complete:
            assert not matcher.finished
            continue
        complete += 1
        try:
            validate(text, schema)
        except (ValueError, jsonschema.ValidationError) as error:
            pytest.fail(f"seed {seed}: {text!r} does not meet {schema}: {error}")
    assert tried >= 310, refused
    assert 280 <= complete < tried
