"""What a caller asks a completion to be. Plain values, compared and hashed by what they say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from gptoss_jax.engine.request import RequestError
from harmony import DeveloperContent
from harmony.api_fields import FUNCTION_NAME
from harmony.errors import shown

MOST_TEXT = 1 << 20
"""The longest schema, regex or Lark grammar, in characters."""

Kind = Literal["json_schema", "regex", "lark"]


class GrammarError(RequestError):
    """A grammar that cannot be enforced; one line that says which part of it and why."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A text that must be exactly what `text` describes: a JSON Schema, a regular expression (Rust's syntax,
    always the whole text) or a Lark grammar (llguidance's dialect, from its rule `start`)."""

    kind: Kind
    text: str


ANY_OBJECT = Document("json_schema", '{"type":"object"}')


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that may be called, and what its arguments must be."""

    name: str
    arguments: Document = ANY_OBJECT


@dataclasses.dataclass(frozen=True)
class Grammar:
    """What a completion must be: its final content, a call of one of some functions, or either.

    final: what the content of the final message must be; None leaves it free.
    functions: those that may be called; with none, no call is possible.
    choice: "auto", the model answers or calls; "required", it must call; "none", it must answer; or the name
        of the one function that it must call.
    """

    final: Document | None = None
    functions: tuple[Function, ...] = ()
    choice: str = "auto"

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        for name in names:
            if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
                raise GrammarError(
                    f"function {shown(name)}: its name must be letters, digits, '_', '-' and '.' only"
                )
            if names.count(name) > 1:
                raise GrammarError(f"function {shown(name)} is given twice")
        if self.choice not in ("auto", "required", "none") and self.choice not in names:
            allowed = ", ".join(["auto", "required", "none", *names])
            raise GrammarError(f"tool choice {shown(self.choice)}: it must be one of {allowed}")
        if self.must_call and not names:
            raise GrammarError("tool choice 'required': there is no function to call")
        if self.final is None and not self.callable:
            raise GrammarError("the grammar asks for nothing: neither of the final content nor of any call")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """Final content that is one JSON document, valid by a schema of Draft 2020-12 (as JSON text, too)."""
        return cls(final=schema_document(schema, "the schema"))

    @classmethod
    def json_object(cls) -> Grammar:
        """Final content that is one JSON object, whatever is in it."""
        return cls(final=ANY_OBJECT)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Final content that a regular expression matches as a whole."""
        return cls(final=_text_document("regex", pattern))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """Final content by a context-free grammar in llguidance's dialect of Lark."""
        return cls(final=_text_document("lark", grammar))

    @classmethod
    def calls(
        cls, functions: Mapping[str, Mapping[str, Any] | str | None], choice: str = "required"
    ) -> Grammar:
        """A call of one of the functions: name → schema of its arguments, None for any JSON object."""
        return cls(functions=_functions(functions), choice=choice)

    def with_calls(
        self, functions: Mapping[str, Mapping[str, Any] | str | None], choice: str = "auto"
    ) -> Grammar:
        """The same final content, or a call of one of the functions."""
        return dataclasses.replace(self, functions=_functions(functions), choice=choice)

    def described_in(
        self, developer: DeveloperContent, name: str = "answer", description: str | None = None
    ) -> DeveloperContent:
        """A developer message's content with the final content's schema under `# Response Formats`.

        The model was trained to see it there; enforcing alone makes it valid, not good. Final content that no
        schema describes adds nothing.
        """
        shown_to_model = developer.model_copy()
        if self.final is None or self.final.kind != "json_schema":
            return shown_to_model
        return shown_to_model.with_response_format(name, json.loads(self.final.text), description)

    @property
    def must_call(self) -> bool:
        """Whether a final message is no way to end."""
        return self.choice not in ("auto", "none")

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that `choice` leaves to the model."""
        if self.choice == "none":
            return ()
        if self.choice in ("auto", "required"):
            return self.functions
        return tuple(function for function in self.functions if function.name == self.choice)


def schema_document(schema: object, where: str) -> Document:
    """A JSON Schema as a document. Raises GrammarError, naming `where`, if it is no JSON object."""
    value = schema
    try:
        if isinstance(schema, str):
            value = json.loads(schema)
        if not isinstance(value, Mapping):
            raise GrammarError(f"{where} is {shown(schema)}: it must be a JSON object")
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except GrammarError:
        raise
    except RecursionError:
        raise GrammarError(f"{where} is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"{where} is no JSON: {error}") from None
    return _text_document("json_schema", text, where)


def _text_document(kind: Kind, text: object, where: str | None = None) -> Document:
    where = where or f"the {kind} grammar"
    if not isinstance(text, str):
        raise GrammarError(f"{where} is {shown(text)}: it must be a string")
    if len(text) > MOST_TEXT:
        raise GrammarError(f"{where} has {len(text)} characters: at most {MOST_TEXT} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{where} has a lone surrogate") from None
    return Document(kind, text)


def _functions(schemas: Mapping[str, Mapping[str, Any] | str | None]) -> tuple[Function, ...]:
    return tuple(
        Function(name)
        if schema is None
        else Function(name, schema_document(schema, f"the parameters of function {shown(name)}"))
        for name, schema in schemas.items()
    )
