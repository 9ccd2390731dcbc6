"""Grammars with tools that are no functions: `python`, `browser.search`."""

from __future__ import annotations

import pytest

from gptoss_jax.engine.grammar import Function, Grammar, GrammarError
from gptoss_jax.engine.grammar.spec import ANY_OBJECT
from tests.engine.test_grammar import ANALYSIS, COMPILER, FINAL, TINY, at, encode, takes

ANSWER = Grammar(ANY_OBJECT, (Function("look"),), tools=("python", "browser.search"))
ONLY = Grammar(choice="required", tools=("python",))
CODE = 'print("a")\n# <x>'


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>analysis to=python code<|message|>",
        "<|channel|>analysis to=python<|message|>",
        "<|channel|>commentary to=python <|constrain|>code<|message|>",
        " to=python<|channel|>analysis code<|message|>",
        " to=python<|channel|>commentary<|constrain|>json<|message|>",
    ],
)
@pytest.mark.parametrize("grammar", [ANSWER, ONLY])
def test_a_tool_may_be_called_in_all_its_forms_with_any_text(grammar: Grammar, header: str) -> None:
    call = f"{ANALYSIS}hm<|end|><|start|>assistant{header}{CODE}"
    assert takes(grammar, call + "<|call|>")
    assert not takes(grammar, call + "<|end|>")
    assert not takes(grammar, call + "<|return|>")
    assert takes(grammar, header + "<|call|>")


def test_what_else_a_grammar_says_stays_as_it_is() -> None:
    assert takes(ANSWER, FINAL + '{"x":3}<|return|>')
    assert not takes(ANSWER, FINAL + "text")
    assert takes(ANSWER, '<|channel|>commentary to=functions.look<|message|>{"x":3}<|call|>')
    assert not takes(ANSWER, "<|channel|>commentary to=functions.look<|message|>text")
    assert not takes(ANSWER, "<|channel|>analysis to=functions.look<|message|>")
    for other in ("pytho", "python3", "browser", "browser.open", "look"):
        assert not takes(ANSWER, f"<|channel|>analysis to={other}<|message|>")
    assert not takes(ONLY, FINAL)
    assert not takes(Grammar(ANY_OBJECT, choice="none", tools=("python",)), " to=python")


@pytest.mark.parametrize("grammar", [ANSWER, ONLY, Grammar(None, (Function("f"),), "required", ("python",))])
def test_closing_the_reasoning_leads_to_what_the_grammar_allows(grammar: Grammar) -> None:
    matcher = at(grammar, ANALYSIS + "hm")
    tokens = matcher.close_reasoning()
    assert tokens is not None
    assert COMPILER.compile(grammar).accept([*encode(ANALYSIS + "hm"), *tokens]) == len(
        encode(ANALYSIS + "hm")
    ) + len(tokens)
    assert TINY.end in tokens


def test_tools_are_words() -> None:
    for tools in ("python", ("a b",), (3,), ("<|end|>",)):
        with pytest.raises(GrammarError, match="tools is"):
            Grammar(ANY_OBJECT, tools=tools)  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="required"):
        Grammar(choice="required")
