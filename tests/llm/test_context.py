"""Sequences longer than the model was made for are allowed, and warned of."""

import logging

from gptoss_jax.llm.loading import warn_beyond_context


def test_a_length_beyond_the_models_context_is_warned_of_with_both_numbers(caplog):
    with caplog.at_level(logging.WARNING):
        warn_beyond_context(131_072, 131_072)
        warn_beyond_context(None, 131_072)
        assert not caplog.records
        warn_beyond_context(200_000, 131_072)
    assert "max_length is 200,000: the model was made for 131,072 tokens" in caplog.text
    assert caplog.text.count("\n") == 1
