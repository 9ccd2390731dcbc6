"""Structured output: grammars, and the masks of tokens that they allow next.

`Grammar` and its parts are plain values. `GrammarCompiler` and `Matcher` compile and follow them; they are
imported at their first use, because they need llguidance and pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gptoss_jax.engine.grammar.header_guard import HeaderGuard
from gptoss_jax.engine.grammar.spec import Document, Function, Grammar, GrammarError

if TYPE_CHECKING:
    from gptoss_jax.engine.grammar.compiler import GrammarCompiler
    from gptoss_jax.engine.grammar.headers import HeaderMatcher
    from gptoss_jax.engine.grammar.matcher import Matcher

__all__ = [
    "Document",
    "Function",
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "HeaderGuard",
    "HeaderMatcher",
    "Matcher",
]

_MODULE_OF = {"GrammarCompiler": "compiler", "HeaderMatcher": "headers", "Matcher": "matcher"}


def __getattr__(name: str) -> Any:
    """Imports the module of a name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
