"""A request body → a request for the engine, or an `ApiError` that says why not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gptoss_jax.engine import Request, RequestError, SamplingParams
from gptoss_jax.engine.grammar import GrammarError
from gptoss_jax.openai_api.answer_format import AnswerFormat, answer_format
from gptoss_jax.openai_api.errors import ApiError, bad_value, read_flag
from gptoss_jax.openai_api.fields import UnknownField, check_fields, unknown_field_error
from gptoss_jax.openai_api.grammar import completion_grammar
from gptoss_jax.openai_api.input_items import items_of, with_calls
from gptoss_jax.openai_api.rendering import History, render_prompt, with_header_guard
from gptoss_jax.openai_api.sampling import asks_for_endless_reasoning, sampling_from
from gptoss_jax.openai_api.tools import tools_from_body
from harmony import Conversation, HarmonyError, SystemContent
from harmony.openai_formats import BodyForm, conversation_from_body

if TYPE_CHECKING:
    from harmony import HarmonyEncoding, ToolNamespaceConfig


class RequestChecker(Protocol):
    """What is asked of an engine before a request is queued."""

    max_length: int

    def check(self, request: Request) -> None:
        """Raises RequestError if the request can never run."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What turns bodies into requests, the same for all of them.

    sampling, effort: for bodies that do not say.
    date: the system message's current date, ``YYYY-MM-DD``.
    history: how much of the earlier chain of thought stays in prompts. A body's `reasoning.context` of
        "all_turns" keeps all of it.
    strict: whether an unknown field is an error; else `Prepared.unknown` tells of it.
    ignore_unknown_tools: whether tools that are no functions are left out; else they are an error.
    reasoning_share: where neither a body nor `sampling` has a reasoning budget, this part of the tokens that
        fit behind the prompt; None for no limit.
    header_guard: True lets headers of answers name only the tools and channels that a body declares; False
        leaves headers free.
    built_in: the tools that run beside the model, by name, as the system message declares them; a body asks
        for them by their types.
    """

    engine: RequestChecker
    encoding: HarmonyEncoding
    sampling: SamplingParams
    effort: str | None
    date: str
    history: History = dataclasses.field(default="guide", kw_only=True)
    strict: bool = dataclasses.field(default=False, kw_only=True)
    ignore_unknown_tools: bool = dataclasses.field(default=False, kw_only=True)
    header_guard: bool = dataclasses.field(default=True, kw_only=True)
    reasoning_share: float | None = dataclasses.field(default=None, kw_only=True)
    built_in: Mapping[str, ToolNamespaceConfig] = dataclasses.field(default_factory=dict, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """What the rounds of a request need that follow calls of built-in tools.

    tools: the names of the tools that the model may call.
    conversation, history: what the first round's prompt was made of.
    calling, answering: the constraints on sampling where further calls of these tools are possible, and where
        none is. In neither of them a call is required: there was one.
    """

    tools: tuple[str, ...]
    conversation: Conversation
    history: History
    calling: SamplingParams
    answering: SamplingParams


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A good body, and its request.

    body: as it came. tools: those that it declares, without tools that were left out.
    with_reasoning: whether the answer is to have the chain of thought.
    unknown: its fields that nothing here knows.
    rounds: None if the model may call no built-in tool.
    """

    form: BodyForm
    body: Mapping[str, Any]
    tools: list[Any]
    request: Request
    with_reasoning: bool = True
    unknown: tuple[UnknownField, ...] = ()
    rounds: Rounds | None = None


def prepare(
    body: Mapping[str, Any], form: BodyForm, context: Context, *, id: str, seed: int | None
) -> Prepared:
    """The request of a body, its conversation rendered and its sampling checked.

    `id` names the request. `seed` is for a body without one; None leaves it to the engine, which makes it
    of the id.

    Raises:
        ApiError: anything about the body that keeps it from being answered.
    """
    tools = tools_from_body(
        body, form, ignore_unknown=context.ignore_unknown_tools, built_in=context.built_in
    )
    unknown = check_fields({**body, "tools": tools.given}, form)
    if unknown and context.strict:
        raise unknown_field_error(unknown[0])
    sampling = sampling_from(body, form, context.sampling, seed, context.encoding)
    with_reasoning = _with_reasoning(body)
    asked: AnswerFormat | None = None
    try:
        asked = answer_format(body, form)
        read = {**_with_calls(body, form), "tools": tools.allowed, "tool_choice": tools.choice}
        read |= _format_shown(asked, form)
        conversation = _conversation(read, form, context)
        _declare(tools.built_in, conversation, context)
        history = _history(body, context)
        prompt = render_prompt(conversation, context.encoding, history)
        rounds = None
        if tools.built_in:
            later = {**read, "tool_choice": "auto"}
            calling = _constrained(sampling, asked, later, form, tools.built_in, conversation, context)
            answering = _constrained(sampling, asked, later, form, (), conversation, context)
            rounds = Rounds(tools.built_in, conversation, history, calling, answering)
        sampling = _constrained(sampling, asked, read, form, tools.built_in, conversation, context)
    except UnicodeEncodeError:
        raise ApiError(
            "invalid_request", "the text contains a lone surrogate, which is no character"
        ) from None
    except ApiError:
        raise
    except (HarmonyError, ValueError) as error:
        raise _invalid(error, body) from None
    if len(prompt) >= context.engine.max_length:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {len(prompt)} tokens: fewer than {context.engine.max_length} fit "
            "(--max-length, in Python max_length)",
            "input" if form == "responses" else "messages",
        )
    if context.reasoning_share is not None and not asks_for_endless_reasoning(body):
        room = context.engine.max_length - len(prompt)
        sampling = _with_budget(sampling, int(room * context.reasoning_share))
    request = Request(id=id, prompt=prompt, sampling=sampling)
    try:
        context.engine.check(request)
    except GrammarError as error:
        is_answer = asked is not None and str(error).startswith("the final content")
        field = asked.field if asked is not None and is_answer else "tools"
        code = "invalid_json_schema" if field == "tools" or _is_schema(asked) else "invalid_grammar"
        raise ApiError(code, f"{field}: {_one_line(error)}", field) from None
    except RequestError as error:
        raise _invalid(error, body) from None
    return Prepared(form, body, list(tools.listed), request, with_reasoning, tuple(unknown), rounds)


def _declare(names: Sequence[str], conversation: Conversation, context: Context) -> None:
    """Adds built-in tools to the system message of a conversation, in the order of the context."""
    system = conversation.messages[0].content[0]
    assert isinstance(system, SystemContent)
    for name, declaration in context.built_in.items():
        if name in names:
            system.with_tools(declaration)


def _constrained(
    sampling: SamplingParams,
    asked: AnswerFormat | None,
    body: Mapping[str, Any],
    form: BodyForm,
    built_in: Sequence[str],
    conversation: Conversation,
    context: Context,
) -> SamplingParams:
    """The sampling with the grammar that a body asks for, or else with the header guard.

    `built_in`: those tools of the conversation that may be called.
    """
    recipients = [name for tool in built_in for name in _recipients(context.built_in[tool])]
    grammar = completion_grammar(None if asked is None else asked.document, body, form, recipients)
    sampling = dataclasses.replace(sampling, grammar=grammar)
    if not context.header_guard:
        return sampling
    sampling = with_header_guard(sampling, conversation)
    guard = sampling.header_guard
    if guard is not None:
        others = {name for tool in context.built_in.values() for name in _recipients(tool)} - set(recipients)
        allowed = tuple(name for name in guard.recipients if name not in others)
        sampling = dataclasses.replace(sampling, header_guard=dataclasses.replace(guard, recipients=allowed))
    return sampling


def _recipients(tool: ToolNamespaceConfig) -> list[str]:
    """The recipients of a built-in tool's calls."""
    return [f"{tool.name}.{function.name}" for function in tool.tools] or [tool.name]


def _with_budget(sampling: SamplingParams, budget: int) -> SamplingParams:
    """The sampling with a reasoning budget, unless it has one, or ends before it would matter."""
    most = sampling.max_tokens
    if "analysis" in sampling.limits or budget < 1 or (most is not None and most <= budget):
        return sampling
    return dataclasses.replace(sampling, reasoning_budget=budget)


def _is_schema(asked: AnswerFormat | None) -> bool:
    return asked is not None and asked.document is not None and asked.document.kind == "json_schema"


def _format_shown(asked: AnswerFormat | None, form: BodyForm) -> dict[str, Any]:
    """The field of a body that shows the model the format of its answer."""
    shown = None if asked is None else asked.shown
    return {"response_format": shown} if form == "chat" else {"text": {"format": shown}}


def _with_calls(body: Mapping[str, Any], form: BodyForm) -> Mapping[str, Any]:
    """The body with the calls of built-in tools in its `input` as calls and results that harmony knows."""
    given = body.get("input")
    items = items_of(given) if form == "responses" and isinstance(given, list) else None
    return body if items is None else {**body, "input": with_calls(items)}


def _history(body: Mapping[str, Any], context: Context) -> History:
    reasoning = body.get("reasoning")
    asked = reasoning.get("context") if isinstance(reasoning, Mapping) else None
    if asked not in (None, "auto", "current_turn", "all_turns"):
        raise bad_value("reasoning.context", asked, '"auto", "current_turn" or "all_turns"')
    return "all" if asked == "all_turns" else context.history


def _with_reasoning(body: Mapping[str, Any]) -> bool:
    reasoning = body.get("reasoning") or {}
    include = body.get("include_reasoning")
    return not read_flag(reasoning.get("exclude"), "reasoning.exclude") and (
        include is None or read_flag(include, "include_reasoning")
    )


def _conversation(body: Mapping[str, Any], form: BodyForm, context: Context) -> Conversation:
    name = "input" if form == "responses" else "messages"
    if name not in body:
        raise ApiError("invalid_request", f"body has no {name}", name)
    template = body.get("chat_template_kwargs")
    effort = template.get("reasoning_effort") if isinstance(template, Mapping) else None
    return conversation_from_body(
        body,
        form,
        reasoning_effort=context.effort if effort is None else effort,
        current_date=context.date,
    )


def _invalid(error: Exception, body: Mapping[str, Any]) -> ApiError:
    """The error of a body whose messages, tools or sampling are wrong; it begins with the field at fault."""
    message = _one_line(error)
    path = re.match(r"\w+[\w.\[\]]*", message)
    is_field = path is not None and re.split(r"\W", path[0])[0] in body
    return ApiError("invalid_request", message, path[0] if path is not None and is_field else None)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
