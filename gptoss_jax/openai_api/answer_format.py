"""What a request body says the text of an answer must be, in the words of OpenAI, vLLM or SGLang."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gptoss_jax.engine.grammar.spec import ANY_OBJECT, Document, GrammarError, schema_document
from gptoss_jax.openai_api.errors import ApiError, bad_value, read_flag
from harmony.api_fields import schema_format
from harmony.openai_formats import BodyForm

_REGEX_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


@dataclasses.dataclass(frozen=True)
class AnswerFormat:
    """What an answer must be.

    field: the field of the body that says so.
    document: what is enforced; None for a schema that is only shown to the model.
    shown: the `response_format` of Chat Completions, or `text.format` of Responses, that shows the model a
        schema; None where there is none.
    """

    field: str
    document: Document | None
    shown: Mapping[str, Any] | None = None


def answer_format(body: Mapping[str, Any], form: BodyForm) -> AnswerFormat | None:
    """The format of a body's answer; None if any text will do.

    Raises:
        ApiError: two fields ask for one, or a field is of a wrong type.
        GrammarError, HarmonyFormatError: a schema or format is not what it must be.
    """
    formats = [found for found in (_of_api(body, form), *_of_servers(body, form)) if found is not None]
    if len(formats) > 1:
        first, second = formats[0].field, formats[1].field
        message = f"{first} and {second} both say what the answer must be: give one"
        raise ApiError("invalid_request", message, second)
    return formats[0] if formats else None


def strict_schema_format(schema: Mapping[str, Any], form: BodyForm) -> dict[str, Any]:
    """The `response_format` (chat) or `text.format` (Responses) that shows a schema and has it followed.

    It is called by the schema's title, if that is a name.
    """
    title = schema.get("title")
    named = isinstance(title, str) and title.isidentifier() and title.isascii()
    described = {"name": title if named else "response", "schema": schema, "strict": True}
    if form == "responses":
        return {"type": "json_schema", **described}
    return {"type": "json_schema", "json_schema": described}


def _of_api(body: Mapping[str, Any], form: BodyForm) -> AnswerFormat | None:
    """What OpenAI's own field says."""
    if form == "chat":
        asked, field = body.get("response_format"), "response_format"
    else:
        text, field = body.get("text"), "text.format"
        if text is not None and not isinstance(text, Mapping):
            raise bad_value("text", text, "an object")
        asked = None if text is None else text.get("format")
    described = schema_format(asked, field, nested=form == "chat")
    if asked is None or described is None:
        return None
    if asked["type"] == "json_object":
        return AnswerFormat(field, ANY_OBJECT, asked)
    holder, place = (asked["json_schema"], f"{field}.json_schema") if form == "chat" else (asked, field)
    document = None
    if read_flag(holder.get("strict"), f"{place}.strict"):
        document = schema_document(described[1], f"{place}.schema")
    return AnswerFormat(field, document, asked)


def _of_servers(body: Mapping[str, Any], form: BodyForm) -> list[AnswerFormat]:
    """What the fields of vLLM and SGLang say."""
    outputs = body.get("structured_outputs")
    if outputs is None:
        outputs = {}
    elif not isinstance(outputs, Mapping):
        raise bad_value("structured_outputs", outputs, "an object")
    readers: dict[str, Callable[[Any, str, BodyForm], AnswerFormat]] = {
        "json": _schema,
        "regex": _regex,
        "choice": _choice,
        "grammar": _grammar,
    }
    found = []
    for name, read in readers.items():
        own = {"regex": ("regex",), "grammar": ("ebnf",)}.get(name, ())
        for field in (f"guided_{name}", *own):
            if body.get(field) is not None:
                found.append(read(body[field], field, form))
        if outputs.get(name) is not None:
            found.append(read(outputs[name], f"structured_outputs.{name}", form))
    if read_flag(outputs.get("json_object"), "structured_outputs.json_object"):
        found.append(AnswerFormat("structured_outputs.json_object", ANY_OBJECT, {"type": "json_object"}))
    return found


def _schema(value: object, field: str, form: BodyForm) -> AnswerFormat:
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError):
            raise bad_value(field, value, "a JSON Schema, or its text") from None
    if not isinstance(schema, Mapping):
        raise bad_value(field, value, "a JSON Schema, or its text")
    return AnswerFormat(field, schema_document(schema, field), strict_schema_format(schema, form))


def _regex(value: object, field: str, form: BodyForm) -> AnswerFormat:
    if not isinstance(value, str):
        raise bad_value(field, value, "a regular expression")
    return AnswerFormat(field, Document("regex", value))


def _choice(value: object, field: str, form: BodyForm) -> AnswerFormat:
    if not isinstance(value, list) or not value:
        raise bad_value(field, value, "an array of at least one string")
    for index, choice in enumerate(value):
        if not isinstance(choice, str) or not choice:
            raise bad_value(f"{field}[{index}]", choice, "a string that is not empty")
    return AnswerFormat(field, Document("regex", "|".join(map(_escaped, value))))


def _escaped(text: str) -> str:
    """A regular expression, in Rust's syntax, that matches a text and nothing else."""
    return _REGEX_SYNTAX.sub(lambda found: "\\" + found[0], text)


def _grammar(value: object, field: str, form: BodyForm) -> AnswerFormat:
    from llguidance.gbnf_to_lark import any_to_lark

    if not isinstance(value, str):
        raise bad_value(field, value, "a grammar in Lark's or GBNF's syntax")
    try:
        lark = any_to_lark(value)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ApiError("invalid_grammar", f"{field} is no grammar: {reason}", field) from None
    try:
        return AnswerFormat(field, Document("lark", lark))
    except GrammarError as error:
        raise ApiError("invalid_grammar", f"{field}: {error}", field) from None
