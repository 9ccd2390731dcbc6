"""What the bodies of OpenAI's APIs ask a completion to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gptoss_jax.engine.grammar.spec import (
    ANY_OBJECT,
    Document,
    Function,
    Grammar,
    GrammarError,
    schema_document,
)
from gptoss_jax.openai_api.errors import read_flag
from harmony.api_fields import chosen_tools, function_tools
from harmony.openai_formats import BodyForm

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def completion_grammar(
    answer: Document | None, body: Mapping[str, Any], form: BodyForm, recipients: Sequence[str] = ()
) -> Grammar | None:
    """What a body asks to be enforced: the grammar of a completion. None if nothing is.

    answer: what its answer must be; None for any text.
    recipients: the built-in tools that may be called, as headers name them.

    Enforced besides are the arguments of functions with `strict: true`, and a `tool_choice` that is
    "required" or names a function. Where a grammar is needed at all, the arguments of other functions must be
    a JSON object.

    Raises:
        ApiError: a `strict` is neither true nor false.
        GrammarError, HarmonyFormatError: `tools` or `tool_choice` is not what it must be.
    """
    is_chat = form == "chat"
    tools, choice = body.get("tools"), body.get("tool_choice")
    described = function_tools(tools, nested=is_chat)
    allowed = {function.name for function in chosen_tools(described, choice)}
    functions, any_strict = [], False
    for index, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            continue
        function = tool["function"] if is_chat else tool
        if function["name"] not in allowed:
            continue
        place = f"tools[{index}].function" if is_chat else f"tools[{index}]"
        arguments = ANY_OBJECT
        if read_flag(function.get("strict"), f"{place}.strict"):
            any_strict = True
            parameters = function.get("parameters")
            schema = _NO_ARGUMENTS if parameters is None else parameters
            arguments = schema_document(schema, f"{place}.parameters")
        functions.append(Function(function["name"], arguments))
    if choice == "required" or (isinstance(choice, Mapping) and choice.get("type") == "function"):
        if not functions and not recipients:
            raise GrammarError("tool_choice asks for a call: tools has no function to call")
        return Grammar(answer, tuple(functions), "required", tuple(recipients))
    if answer is None and not any_strict:
        return None
    return Grammar(answer, tuple(functions), tools=tuple(recipients))
