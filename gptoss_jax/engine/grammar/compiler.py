"""Grammars of whole completions, in llguidance's form.

A completion follows `<|start|>assistant` and is, in harmony's words:

    messages of `analysis`, and preambles of `commentary` where functions may be called, of any text;
    then a `final` message with the document and `<|return|>`, or a call with its arguments and `<|call|>`.

In the grammar given to llguidance the free texts are empty: `Matcher` lets them pass by without asking.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from gptoss_jax.engine.grammar.asked import Document, Function, Grammar, GrammarError
from gptoss_jax.engine.grammar.matcher import Matcher, reason_of
from gptoss_jax.engine.grammar.schema import prepared
from gptoss_jax.engine.grammar.vocabulary import Vocabulary, vocabulary_of
from harmony import HarmonyEncoding

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_CACHED = 256

START = "<|start|>assistant"
FINAL_HEADER = f"{START}<|channel|>final<|message|>"
FREE_HEADERS = {
    "analysis": f"{START}<|channel|>analysis<|message|>",
    "commentary": f"{START}<|channel|>commentary<|message|>",
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A grammar ready to be followed: from it a `Matcher` per sequence is made.

    initial: llguidance's matcher before the first token, never advanced.
    free_headers: the headers of messages of any text. target: the header, or as much of it as is certain,
    of what is constrained. final_is_free: the final message is any text. is_json: documents are JSON.
    """

    vocabulary: Vocabulary
    initial: LLMatcher
    free_headers: tuple[str, ...]
    target: str
    final_is_free: bool
    is_json: bool


class GrammarCompiler:
    """Compiles grammars for one encoding and a model's number of vocabulary rows. Threads may share it."""

    def __init__(self, encoding: HarmonyEncoding, vocabulary_size: int) -> None:
        if vocabulary_size <= max(encoding.stop_tokens()):
            raise GrammarError(
                f"vocabulary_size is {vocabulary_size}: it must be above {max(encoding.stop_tokens())}, "
                "the highest id of a stop token"
            )
        self._encoding = encoding
        self._rows = vocabulary_size
        self._cached: OrderedDict[tuple[Grammar, bool], Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar, *, reasoning: bool = True) -> Matcher:
        """A matcher at the start of a completion. Raises GrammarError for what cannot be enforced.

        `reasoning`: whether messages of analysis may come first. Compiling takes milliseconds for common
        schemas; what was compiled lately is kept, so a matcher more costs microseconds.
        """
        return Matcher(self._compiled(grammar, reasoning))

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarError for a grammar that cannot be enforced; keeps one that can for `compile`."""
        self._compiled(grammar, True)

    def _compiled(self, grammar: Grammar, reasoning: bool) -> Compiled:
        key = (grammar, reasoning)
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
        compiled = _compile(grammar, reasoning, vocabulary_of(self._encoding, self._rows))
        with self._lock:
            self._cached[key] = compiled
            while len(self._cached) > MOST_CACHED:
                self._cached.popitem(last=False)
        return compiled


def _compile(grammar: Grammar, reasoning: bool, vocabulary: Vocabulary) -> Compiled:
    functions = grammar.callable
    channels = ["analysis"] * reasoning + ["commentary"] * bool(functions)
    parts = [(f"function_{index}", function.arguments) for index, function in enumerate(functions)]
    if grammar.final is not None and not grammar.must_call:
        parts.insert(0, ("final", grammar.final))
    where = {f"function_{index}": function.name for index, function in enumerate(functions)}
    grammars: list[dict[str, Any]] = []
    for name, document in parts:
        try:
            part = {**_as_grammar(document), "name": name}
            _check(part, vocabulary)
        except GrammarError as error:
            what = f"the arguments of function {where[name]!r}" if name in where else "the final content"
            raise GrammarError(f"{what}: {error}") from None
        grammars.append(part)
    lark = _completion(grammar, channels)
    initial = _matcher([{"name": "completion", "lark_grammar": lark}, *grammars], vocabulary)
    if initial.is_error():
        raise GrammarError(f"the grammar: {reason_of(initial)}")
    return Compiled(
        vocabulary=vocabulary,
        initial=initial,
        free_headers=tuple(FREE_HEADERS[channel] for channel in channels),
        target=FINAL_HEADER if not grammar.must_call else _call_header(functions),
        final_is_free=grammar.final is None and not grammar.must_call,
        is_json=any(document.kind == "json_schema" for _, document in parts),
    )


# Else a mask has only the longest of the tokens that can begin a text which has become certain, while each
# of them is accepted: draws could depend on whether a token was masked, or checked once it was drawn.
_OPTIONS = '%llguidance {"no_forcing": true}'


def _completion(grammar: Grammar, channels: list[str]) -> str:
    """The messages of a completion in Lark, the documents by name."""
    header_end = '(" "? <|constrain|> "json")? <|message|>'
    rules, ends = [], []
    for channel in channels:
        rules.append(f'{channel}: <|channel|> "{channel}" <|message|> <|end|> <|start|> "assistant"')
    if not grammar.must_call:
        document = "" if grammar.final is None else "@final"
        rules.append(f'answer: <|channel|> "final" {header_end} {document} <|return|>')
        ends.append("answer")
    for index, function in enumerate(grammar.callable):
        to = json.dumps(f" to=functions.{function.name}")
        # The model writes the recipient in its channel; renderers of harmony write it before.
        both = f'(<|channel|> "commentary" {to} | {to} <|channel|> "commentary")'
        rules.append(f"call_{index}: {both} {header_end} @function_{index} <|call|>")
        ends.append(f"call_{index}")
    before = f"({' | '.join(channels)})* " if channels else ""
    return "\n".join([_OPTIONS, f"start: {before}({' | '.join(ends)})", *rules])


def _call_header(functions: tuple[Function, ...]) -> str:
    """How a call begins, as far as it is the same for all functions."""
    header = f"{START}<|channel|>commentary to=functions"
    # The dot is left to the name: most vocabularies have it in the name's first token.
    return f"{header}.{functions[0].name} <|constrain|>json<|message|>" if len(functions) == 1 else header


def _as_grammar(document: Document) -> dict[str, Any]:
    from llguidance import LLMatcher

    if document.kind == "json_schema":
        return {"json_schema": prepared(document.text)}
    if document.kind == "regex":
        made: dict[str, Any] = json.loads(LLMatcher.grammar_from_regex(document.text))["grammars"][0]
        return made
    named = _SPECIAL.search(_QUOTED.sub("", document.text))
    if named:
        raise GrammarError(f"{named.group()} names special tokens, which no document can have")
    return {"lark_grammar": document.text}


_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/')
_SPECIAL = re.compile(r"<[^<>\n]*>?")


def _check(part: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Raises GrammarError with llguidance's reason against a document, or if no text can begin it."""
    alone = _matcher([part], vocabulary)
    alone.compute_bitmask()
    if alone.is_error():
        raise GrammarError(reason_of(alone))


def _matcher(grammars: list[dict[str, Any]], vocabulary: Vocabulary) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    text = json.dumps({"grammars": grammars}, ensure_ascii=False)
    limits = LLParserLimits(verbose_errors=False)
    return LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
