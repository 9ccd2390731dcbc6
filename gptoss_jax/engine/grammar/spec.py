"""Grammars as plain values, compared and hashed by their contents."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from gptoss_jax.engine.errors import RequestError
from gptoss_jax.engine.values import as_items
from harmony.errors import shown

if TYPE_CHECKING:  # it needs pydantic, which grammars do without
    from harmony import DeveloperContent

MAX_TEXT = 1 << 20
"""The longest schema, regex or Lark grammar, in characters."""

Kind = Literal["json_schema", "regex", "lark"]
KINDS: tuple[str, ...] = get_args(Kind)


class GrammarError(RequestError):
    """A grammar that cannot be enforced. The message is one line: which part of it, and why."""


def _check_text(text: object, where: str) -> None:
    """Raises GrammarError for a text that no document can have. `where` names it in the error."""
    if not isinstance(text, str):
        raise GrammarError(f"{where} is {shown(text)}: it must be a string")
    if len(text) > MAX_TEXT:
        raise GrammarError(f"{where} has {len(text)} characters: at most {MAX_TEXT} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{where} has a lone surrogate") from None


@dataclasses.dataclass(frozen=True)
class Document:
    """A constraint on a whole text.

    kind, text: a JSON Schema; a regular expression in Rust's syntax, which must match the whole text; or a
        Lark grammar in llguidance's dialect, whose first rule is `start`.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise GrammarError(f"the kind of document {shown(self.kind)}: it must be {' or '.join(KINDS)}")
        _check_text(self.text, f"the {self.kind} grammar")


ANY_OBJECT = Document("json_schema", '{"type":"object"}')


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that the model may call, and the constraint on its arguments."""

    name: str
    arguments: Document = ANY_OBJECT

    def __post_init__(self) -> None:
        from harmony.api_fields import FUNCTION_NAME  # loads pydantic, which only functions need

        if not isinstance(self.name, str) or not FUNCTION_NAME.fullmatch(self.name):
            raise GrammarError(
                f"function {shown(self.name)}: its name must be letters, digits, '_', '-' and '.' only"
            )
        if not isinstance(self.arguments, Document):
            raise GrammarError(
                f"the arguments of function {shown(self.name)} are {shown(self.arguments)}: they must be a "
                "Document"
            )


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A constraint on a completion: on its final message, on calls of functions, or on both.

    final: the constraint on the final message's content; None for any text.
    functions: the functions that the model may call; empty for no calls.
    choice: "auto": the model answers or calls. "required": it must call. "none": it must answer. A function's
        name: it must call this function.
    tools: the other recipients that may be called, with any content, as headers name them: `python`,
        `browser.search`. "required" allows them too.
    """

    final: Document | None = None
    functions: tuple[Function, ...] = ()
    choice: str = "auto"
    tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from harmony.header import is_word

        if self.final is not None and not isinstance(self.final, Document):
            raise GrammarError(f"final is {shown(self.final)}: it must be a Document or None")
        functions = as_items(self.functions)
        if functions is None or not all(isinstance(function, Function) for function in functions):
            raise GrammarError(f"functions is {shown(self.functions)}: it must be a tuple of Functions")
        object.__setattr__(self, "functions", tuple(functions))
        names = collections.Counter(function.name for function in functions)
        for name, count in names.items():
            if count > 1:
                raise GrammarError(f"function {shown(name)} is given twice")
        choices = ["auto", "required", "none", *names]
        if not isinstance(self.choice, str) or self.choice not in choices:
            raise GrammarError(f"tool choice {shown(self.choice)}: it must be one of {', '.join(choices)}")
        tools = as_items(self.tools)
        if tools is None or not all(isinstance(tool, str) and is_word(tool) for tool in tools):
            raise GrammarError(f"tools is {shown(self.tools)}: it must be a tuple of words")
        object.__setattr__(self, "tools", tuple(tools))
        if self.must_call and not names and not tools:
            raise GrammarError("tool choice 'required': there is no function to call")
        if self.final is None and not self.callable and not self.callable_tools:
            raise GrammarError("the grammar constrains nothing: it must have final content or functions")

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str) -> Grammar:
        """The final message is a JSON document that is valid under a schema.

        `schema`: JSON Schema of Draft 2020-12, as a mapping or as JSON text.
        """
        return cls(final=schema_document(schema, "the schema"))

    @classmethod
    def json_object(cls) -> Grammar:
        """The final message is any JSON object."""
        return cls(final=ANY_OBJECT)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """The final message is a text that the regular expression matches as a whole."""
        return cls(final=_text_document("regex", pattern))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """The final message follows a context-free grammar in llguidance's dialect of Lark."""
        return cls(final=_text_document("lark", grammar))

    @classmethod
    def calls(
        cls, functions: Mapping[str, Mapping[str, object] | str | None], choice: str = "required"
    ) -> Grammar:
        """The completion is a call of one of the functions.

        `functions`: name → JSON Schema of its arguments; None for any JSON object. `choice`: as in `Grammar`.
        """
        return cls(functions=_functions(functions), choice=choice)

    def with_calls(
        self, functions: Mapping[str, Mapping[str, object] | str | None], choice: str = "auto"
    ) -> Grammar:
        """The same constraint on the final message, but a call of one of the functions is possible too."""
        return dataclasses.replace(self, functions=_functions(functions), choice=choice)

    def described_in(
        self, developer: DeveloperContent, name: str = "answer", description: str | None = None
    ) -> DeveloperContent:
        """Returns the content of a developer message with this schema under `# Response Formats`.

        The model was trained to find the schema there. Enforcing alone makes its answers valid, but not good.
        A grammar without a JSON Schema for the final message adds nothing.
        """
        shown_to_model = developer.model_copy()
        if self.final is None or self.final.kind != "json_schema":
            return shown_to_model
        return shown_to_model.with_response_format(name, json.loads(self.final.text), description)

    @property
    def must_call(self) -> bool:
        """True if the completion must end in a call."""
        return self.choice not in ("auto", "none")

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that `choice` allows the model to call."""
        if self.choice == "none":
            return ()
        if self.choice in ("auto", "required"):
            return self.functions
        return tuple(function for function in self.functions if function.name == self.choice)

    @property
    def callable_tools(self) -> tuple[str, ...]:
        """The tools that `choice` allows the model to call."""
        return self.tools if self.choice in ("auto", "required") else ()


def schema_document(schema: object, where: str) -> Document:
    """A JSON Schema as a document. Raises GrammarError if it is no JSON object; `where` names it there."""
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
    _check_text(text, where or f"the {kind} grammar")
    assert isinstance(text, str)
    return Document(kind, text)


def _functions(schemas: Mapping[str, Mapping[str, object] | str | None]) -> tuple[Function, ...]:
    if not isinstance(schemas, Mapping):
        raise GrammarError(f"functions is {shown(schemas)}: it must be a mapping of names to schemas")
    return tuple(
        Function(name)
        if schema is None
        else Function(name, schema_document(schema, f"the parameters of function {shown(name)}"))
        for name, schema in schemas.items()
    )
