"""Compiles the grammar of a whole completion for llguidance.

A completion follows `<|start|>assistant`. Under a grammar it is a sequence of harmony messages:

    any number of `analysis` messages with any text; and of `commentary` preambles, if functions may be
    called; then a `final` message with the document and `<|return|>`, or a call with its arguments and
    `<|call|>`.

In llguidance's grammar the texts of analysis, of preambles and of calls of tools that are no functions are
empty: `Matcher` allows any text there without asking llguidance.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from gptoss_jax.engine.grammar.matcher import Compiled, Matcher, reason_of
from gptoss_jax.engine.grammar.schema import prepared
from gptoss_jax.engine.grammar.spec import Document, Function, Grammar, GrammarError
from gptoss_jax.engine.grammar.vocabulary import Vocabulary, vocabulary_of
from harmony import HarmonyEncoding
from harmony.json_types import JsonObject

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_CACHED = 256

START = "<|start|>assistant"
FINAL_HEADER = f"{START}<|channel|>final<|message|>"
FREE_HEADERS = {
    "analysis": f"{START}<|channel|>analysis<|message|>",
    "commentary": f"{START}<|channel|>commentary<|message|>",
}


class GrammarCompiler:
    """Compiles grammars for an encoding and a model's number of vocabulary rows. It is thread-safe."""

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
        """Returns a matcher at the start of a completion.

        `reasoning`: True allows analysis messages. Compiling a common schema takes milliseconds. The last 256
        compiled grammars are kept, so another matcher for the same grammar takes microseconds.

        Raises:
            GrammarError: the grammar cannot be enforced.
        """
        return Matcher(self._compiled(grammar, reasoning))

    def check(self, grammar: Grammar) -> None:
        """Compiles a grammar and keeps it for `compile`. Raises GrammarError if it cannot be enforced."""
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
            while len(self._cached) > MAX_CACHED:
                self._cached.popitem(last=False)
        return compiled


def _compile(grammar: Grammar, reasoning: bool, vocabulary: Vocabulary) -> Compiled:
    functions, tools = grammar.callable, grammar.callable_tools
    channels = ["analysis"] * reasoning + ["commentary"] * bool(functions or tools)
    parts = [(f"function_{index}", function.arguments) for index, function in enumerate(functions)]
    if grammar.final is not None and not grammar.must_call:
        parts.insert(0, ("final", grammar.final))
    where = {f"function_{index}": function.name for index, function in enumerate(functions)}
    grammars: list[JsonObject] = []
    for name, document in parts:
        try:
            part: JsonObject = {**_as_grammar(document), "name": name}
            _check(part, vocabulary)
        except GrammarError as error:
            what = f"the arguments of function {where[name]!r}" if name in where else "the final content"
            raise GrammarError(f"{what}: {error}") from None
        grammars.append(part)
    lark = _completion(grammar, channels)
    initial = new_matcher([{"name": "completion", "lark_grammar": lark}, *grammars], vocabulary)
    if initial.is_error():
        raise GrammarError(f"the grammar: {reason_of(initial)}")
    return Compiled(
        vocabulary=vocabulary,
        initial=initial,
        free_headers=tuple(FREE_HEADERS[channel] for channel in channels),
        target=FINAL_HEADER if not grammar.must_call else _call_header(functions, tools),
        final_is_free=grammar.final is None and not grammar.must_call,
        calls_are_free=bool(tools),
        is_json=any(document.kind == "json_schema" for _, document in parts),
    )


# Without this option, where only one text can follow, the mask has only the longest token that begins it,
# while shorter ones are accepted too. A draw would then depend on whether its token was masked, or drawn
# first and checked afterwards.
LARK_OPTIONS = '%llguidance {"no_forcing": true}'


def _completion(grammar: Grammar, channels: list[str]) -> str:
    """The Lark grammar of a completion's messages; it refers to the documents by name."""
    header_end = '(" "? <|constrain|> "json")? <|message|>'
    tool_header_end = '(" json" | " code" | " "? <|constrain|> ("json" | "code"))? <|message|>'
    rules, ends = [], []
    for channel in channels:
        rules.append(f'{channel}: <|channel|> "{channel}" <|message|> <|end|> <|start|> "assistant"')
    if not grammar.must_call:
        document = "" if grammar.final is None else "@final"
        rules.append(f'answer: <|channel|> "final" {header_end} {document} <|return|>')
        ends.append("answer")
    for index, function in enumerate(grammar.callable):
        to = json.dumps(f" to=functions.{function.name}")
        # The model writes the recipient after the channel; harmony renderers write it before.
        both = f'(<|channel|> "commentary" {to} | {to} <|channel|> "commentary")'
        rules.append(f"call_{index}: {both} {header_end} @function_{index} <|call|>")
        ends.append(f"call_{index}")
    for index, tool in enumerate(grammar.callable_tools):
        to, channel = json.dumps(f" to={tool}"), '("analysis" | "commentary")'
        both = f"(<|channel|> {channel} {to} | {to} <|channel|> {channel})"
        rules.append(f"tool_{index}: {both} {tool_header_end} <|call|>")
        ends.append(f"tool_{index}")
    before = f"({' | '.join(channels)})* " if channels else ""
    return "\n".join([LARK_OPTIONS, f"start: {before}({' | '.join(ends)})", *rules])


def _call_header(functions: tuple[Function, ...], tools: tuple[str, ...]) -> str:
    """The beginning of a call's header that is the same for all functions and tools."""
    if tools:
        alone = len(tools) == 1 and not functions
        return f"{START}<|channel|>commentary to" + (f"={tools[0]}<|message|>" if alone else "")
    header = f"{START}<|channel|>commentary to=functions"
    # Without the dot: in most vocabularies it is part of the name's first token.
    return f"{header}.{functions[0].name} <|constrain|>json<|message|>" if len(functions) == 1 else header


def _as_grammar(document: Document) -> JsonObject:
    """A document as one of llguidance's grammars. Raises GrammarError."""
    from llguidance import LLMatcher

    if document.kind == "json_schema":
        return {"json_schema": prepared(document.text)}
    if document.kind == "regex":
        made: JsonObject = json.loads(LLMatcher.grammar_from_regex(document.text))["grammars"][0]
        return made
    named = _SPECIAL.search(_QUOTED.sub("", document.text))
    if named:
        raise GrammarError(f"{named.group()} names special tokens, which no document can have")
    return {"lark_grammar": document.text}


_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/')
_SPECIAL = re.compile(r"<[^<>\n]*>?")


def _check(part: JsonObject, vocabulary: Vocabulary) -> None:
    """Raises GrammarError if llguidance refuses a document, or if no text can match it."""
    alone = new_matcher([part], vocabulary)
    alone.compute_bitmask()
    if alone.is_error():
        raise GrammarError(reason_of(alone))


def new_matcher(grammars: list[JsonObject], vocabulary: Vocabulary) -> LLMatcher:
    """llguidance's matcher of the first of some grammars in its form, which may name the others."""
    from llguidance import LLMatcher, LLParserLimits

    text = json.dumps({"grammars": grammars}, ensure_ascii=False)
    limits = LLParserLimits(verbose_errors=False)
    return LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
