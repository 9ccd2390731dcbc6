"""What may be given as a prompt, and what it becomes."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import BaseModel

from gptoss_jax.engine.request import RequestError, SamplingParams
from gptoss_jax.llm.prompts import conversation_of, rendered_prompt, split_prompts
from harmony import (
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    ToolDescription,
    ToolNamespaceConfig,
)
from harmony.openai_formats import conversation_from_chat

DATE = "2025-06-28"
USER = Message.from_role_and_content(Role.USER, "Hi")
CHAT = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
SCHEMA = {"title": "Sum", "type": "object", "properties": {"sum": {"type": "integer"}}}


@pytest.mark.parametrize(
    "one",
    [
        "Hi",
        Conversation(messages=[USER]),
        [USER, USER],
        [CHAT, CHAT],
        [1, 2, 3],
        [np.int64(1)],
        (1, 2),
    ],
)
def test_one_prompt_is_one_and_a_list_of_it_is_a_list(one) -> None:
    assert split_prompts(one) == [one]
    assert split_prompts([one, one]) == [one, one]


def test_lists_of_strings_and_mixed_lists_are_many_prompts() -> None:
    mixed = ["Hi", Conversation(messages=[USER]), [USER], [CHAT], [1]]
    assert split_prompts(mixed) == mixed
    assert split_prompts([]) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (3, "prompts is 3: it must be a string"),
        (None, "prompts is None"),
        (b"Hi", "prompts is b'Hi'"),
        (CHAT, "prompts is {'role': 'user'"),
        (["Hi", CHAT], r"prompts\[1\] is {'role': 'user'"),
        ([USER, CHAT], r"prompts\[0\] is Message"),
        ([1, "Hi"], r"prompts\[0\] is 1"),
        ([True, False], r"prompts\[0\] is True"),
    ],
)
def test_what_is_no_prompt_is_refused_in_one_line(wrong, says) -> None:
    with pytest.raises(RequestError, match=f"^{says}.*$"):
        split_prompts(wrong)


@pytest.mark.parametrize("prompt", ["Hi", [CHAT], [USER], Conversation(messages=[USER])])
def test_every_form_renders_as_the_same_chat_request(prompt, encoding: HarmonyEncoding) -> None:
    expected = conversation_from_chat(
        [{"role": "developer", "content": "Be brief."}, CHAT],
        tools=[TOOL],
        reasoning_effort="high",
        response_format={"type": "json_schema", "json_schema": {"name": "Sum", "schema": SCHEMA}},
        current_date=DATE,
    )
    prepared = rendered_prompt(
        prompt,
        {
            "instructions": "Be brief.",
            "tools": [TOOL],
            "effort": "high",
            "response_schema": SCHEMA,
            "date": DATE,
        },
        encoding,
    )
    assert prepared.conversation == expected
    assert prepared.tokens == encoding.render_conversation_for_completion(expected, Role.ASSISTANT)


def test_a_conversations_own_system_and_developer_message_stay_and_are_completed() -> None:
    system = SystemContent(model_identity="You are Bo.", conversation_start_date="2024-01-01")
    developer = DeveloperContent(instructions="Be brief.")
    given = [
        Message.from_role_and_content(Role.SYSTEM, system),
        Message.from_role_and_content(Role.DEVELOPER, developer),
        USER,
    ]
    made = conversation_of(given, {"effort": "low", "tools": [TOOL]}).messages
    assert len(made) == 3
    assert made[0].content[0] == system.model_copy(update={"reasoning_effort": ReasoningEffort.LOW})
    functions = [ToolDescription.model_validate(TOOL["function"])]
    assert made[1].content[0] == DeveloperContent(instructions="Be brief.").with_function_tools(functions)
    assert given[0].content[0].reasoning_effort is ReasoningEffort.MEDIUM, "the caller's own is not touched"
    assert given[1].content[0].tools is None


def test_functions_join_other_tools_of_a_developer_message() -> None:
    other = ToolNamespaceConfig(name="files", tools=[ToolDescription(name="read")])
    developer = Message.from_role_and_content(Role.DEVELOPER, DeveloperContent().with_tools(other))
    made = conversation_of([developer, USER], {"tools": [TOOL]}).messages
    assert set(made[1].content[0].tools) == {"files", "functions"}
    with pytest.raises(RequestError, match=r"^tools cannot be set: the conversation's developer message has"):
        conversation_of(made, {"tools": [TOOL]})


def test_instructions_join_those_of_a_list_of_chat_messages(encoding: HarmonyEncoding) -> None:
    prompt = [{"role": "system", "content": "Be kind."}, CHAT]
    made = rendered_prompt(prompt, {"instructions": "Be brief."}, encoding).conversation
    assert made is not None
    assert made.messages[1].content[0] == DeveloperContent(instructions="Be brief.\n\nBe kind.")


def test_token_ids_are_the_prompt_as_they_are(encoding: HarmonyEncoding) -> None:
    prepared = rendered_prompt([1, np.int64(2), 3], {}, encoding)
    assert prepared.tokens == [1, 2, 3]
    assert all(type(token) is int for token in prepared.tokens)
    assert prepared.conversation is None


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ([1, 2], {"effort": "low"}, "effort is given with a prompt of token ids: leave it out"),
        ([], {}, "the prompt is empty"),
        ([[]], {}, r"the prompt is \[\[\]\]"),
        (Conversation(messages=[]), {}, "the conversation is empty"),
        ("Hi", {"effort": "huge"}, 'reasoning_effort is "huge": it must be one of none, minimal, low'),
        ("Hi", {"date": "today"}, 'current_date is "today"'),
        ("Hi", {"tools": [{"type": "function"}]}, r"tools\[0\].function is null"),
        ("Hi", {"response_schema": 3}, "response_schema is 3"),
        ("Hi\ud800", {}, ".*lone surrogate"),
        ([Message.from_role_and_content(Role.USER, "Hi\ud800")], {}, ".*lone surrogate"),
        ([{"role": "user"}], {}, r"messages\[0\].content is null"),
        (
            [Message.from_role_and_content(Role.SYSTEM, "plain"), USER],
            {"effort": "low"},
            "effort, date and built_in_tools cannot be set: the system message is plain text",
        ),
        (
            [
                Message.from_role_and_content(Role.SYSTEM, SystemContent()),
                Message.from_role_and_content(Role.DEVELOPER, DeveloperContent(instructions="A")),
            ],
            {"instructions": "B"},
            "instructions cannot be set: the conversation's developer message has its own",
        ),
        ([USER.model_copy().with_channel("two words")], {}, "channel is 'two words'"),
    ],
)
def test_errors_are_one_line_that_says_which_prompt_and_why(
    prompt, options, says, encoding: HarmonyEncoding
) -> None:
    with pytest.raises(RequestError, match=rf"^prompts\[7\]: {says}.*$"):
        rendered_prompt(prompt, options, encoding, "prompts[7]")


def test_every_prompt_of_a_list_is_checked_before_anything_runs(answering) -> None:
    llm = answering("x", max_length=200)
    with pytest.raises(RequestError, match=r"^prompts\[2\]: "):
        llm.generate(["Hi", "Ho", []])
    with pytest.raises(RequestError, match=r"^prompts\[1\]: the prompt has \d+ tokens: at most 200 fit$"):
        llm.generate(["Hi", "Ho " * 300])
    with pytest.raises(RequestError, match=r"^the prompt has \d+ tokens: at most 200 fit$"):
        llm.generate("Ho " * 300)
    assert not llm._engine.requests


def test_sampling_is_for_all_or_for_each(answering) -> None:
    llm = answering("<|channel|>final<|message|>x<|return|>")
    llm.generate(["a", "b"], SamplingParams(top_k=3))
    llm.generate(["a", "b"], [SamplingParams(top_k=4), SamplingParams(top_k=5)])
    llm.generate("a")
    used = [request.sampling.top_k for request in llm._engine.requests.values()]
    assert used == [3, 3, 4, 5, 0]


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ([SamplingParams()], r"^sampling has 1 entries for 2 prompts: it must have as many$"),
        ({"top_k": 3}, r"^sampling is {'top_k': 3}: it must be a SamplingParams$"),
        ([SamplingParams(), 3], r"^sampling\[1\] is 3: it must be a SamplingParams$"),
    ],
)
def test_wrong_sampling_is_refused(sampling, says, answering) -> None:
    with pytest.raises(RequestError, match=says):
        answering("x").generate(["a", "b"], sampling)


def test_an_unknown_option_is_named(answering) -> None:
    with pytest.raises(TypeError, match=r"^temperature is no option of a prompt: there are instr"):
        answering("x").generate("a", temperature=0)


def test_no_prompts_make_no_generations(answering) -> None:
    assert answering("x").generate([]) == []


class Sum(BaseModel):
    sum: int


def test_a_response_schema_is_shown_and_enforced(answering, encoding: HarmonyEncoding) -> None:
    grammar = pytest.importorskip("gptoss_jax.engine.grammar")
    llm = answering("<|channel|>final<|message|>x<|return|>")
    llm.generate("a", SamplingParams(top_k=3), response_schema=Sum)
    (request,) = llm._engine.requests.values()
    assert "# Response Formats\n\n## Sum" in encoding.decode(request.prompt)
    assert request.sampling == SamplingParams(
        top_k=3, grammar=grammar.Grammar.json_schema(Sum.model_json_schema())
    )
    llm.generate("a", response_schema=Sum, tools=[TOOL])
    *_, request = llm._engine.requests.values()
    assert request.sampling.grammar == grammar.Grammar.json_schema(Sum.model_json_schema()).with_calls(
        {"add": TOOL["function"]["parameters"]}
    )
    message = r"^response_schema and sampling.grammar are both given: give one of them$"
    with pytest.raises(RequestError, match=message):
        llm.generate("a", request.sampling, response_schema=Sum)


def test_built_in_tools_join_those_that_the_system_message_has(encoding: HarmonyEncoding) -> None:
    system = SystemContent().with_browser_tool()
    messages = [Message.from_role_and_content(Role.SYSTEM, system), USER]
    prepared = rendered_prompt(messages, {"built_in_tools": [ToolNamespaceConfig.python()]}, encoding)
    text = encoding.decode(prepared.tokens)
    assert "namespace browser {" in text and "## python" in text
    assert list(system.tools or {}) == ["browser"], "what the caller gave stays as it is"
