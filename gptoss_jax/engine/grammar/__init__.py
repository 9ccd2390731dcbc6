"""Structured output: what a completion must be, and which tokens may come next for it to become that."""

from gptoss_jax.engine.grammar.asked import Document, Function, Grammar, GrammarError
from gptoss_jax.engine.grammar.bodies import grammar_from_body
from gptoss_jax.engine.grammar.compiler import GrammarCompiler
from gptoss_jax.engine.grammar.matcher import Matcher

__all__ = [
    "Document",
    "Function",
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "Matcher",
    "grammar_from_body",
]
