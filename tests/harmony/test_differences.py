"""Where this library differs from openai-harmony 0.0.8 on purpose, each with its reason.

Each case runs the same call on both libraries. A case fails when the two no longer differ: it then belongs
to the differential tests.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import harmony
from harmony import HarmonyEncoding

Case = Callable[[Any, Any], Any]


def render_with(**header: Any) -> Case:
    def case(library: Any, encoding: Any) -> Any:
        author = library.Author(**header.get("author", {"role": "assistant"}))
        message = library.Message.from_author_and_content(author, "x")
        for name in ("channel", "recipient", "content_type"):
            setattr(message, name, header.get(name))
        return encoding.render(message)

    return case


def system_without_identity(library: Any, encoding: Any) -> Any:
    content = library.SystemContent(model_identity=None)
    message = library.Message.from_role_and_content(library.Role.SYSTEM, content)
    conversation = library.Conversation.from_messages([message])
    again = library.Conversation.from_json(conversation.to_json())
    return encoding.decode(encoding.render_conversation(again))


def dumped(library: Any, encoding: Any) -> Any:
    message = library.Message.from_role_and_content(library.Role.USER, "hi")
    return library.Message.model_validate(message.model_dump()).to_dict()


def loaded_twice(library: Any, encoding: Any) -> Any:
    return library.load_harmony_encoding("HarmonyGptOss") is library.load_harmony_encoding("HarmonyGptOss")


DIFFERENCES: dict[str, Case] = {
    "a space in a recipient would change the header": render_with(recipient="functions.f extra"),
    "a special token's text in a channel is read back as one": render_with(channel="final<|constrain|>json"),
    "an empty channel cannot be parsed": render_with(channel=""),
    "a line break in a content type would change the header": render_with(content_type="json\nx"),
    "an empty content type cannot be parsed": render_with(content_type=""),
    "a special token's text in a content type is read back as one": render_with(
        content_type="json<|message|>"
    ),
    "a tool named system would be read as the system": render_with(author={"role": "tool", "name": "system"}),
    "a space in a name would change the header": render_with(author={"role": "user", "name": "a to=b"}),
    "a None that replaced a default survives JSON": system_without_identity,
    "model_dump keeps the content": dumped,
    "a tool's description is optional": lambda library, encoding: library.ToolDescription(name="f").name,
    "the encoding is made once per process": loaded_twice,
    "the name of the encoding has a default": lambda library, encoding: library.load_harmony_encoding().name,
}


def outcome(case: Case, library: Any, encoding: Any) -> Any:
    try:
        return case(library, encoding)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("reason", DIFFERENCES)
def test_each_deliberate_difference_still_differs(
    reason: str, encoding: HarmonyEncoding, known: ModuleType, known_encoding: Any
) -> None:
    case = DIFFERENCES[reason]
    assert outcome(case, harmony, encoding) != outcome(case, known, known_encoding)


def test_every_public_name_of_the_known_library_exists_here(known: ModuleType) -> None:
    importable = {"ReasoningEffort", "ChannelConfig", "ToolNamespaceConfig"}
    importable |= {"RenderConversationConfig", "RenderOptions"}
    missing = {name for name in {*known.__all__, *importable} if not hasattr(harmony, name)}
    assert missing == set()


def test_every_public_method_of_the_known_library_exists_here(
    known: ModuleType, encoding: HarmonyEncoding, known_encoding: Any
) -> None:
    pairs = {name: (getattr(known, name), getattr(harmony, name)) for name in known.__all__}
    pairs["HarmonyEncoding"] = (known_encoding, encoding)
    for name, (theirs, ours) in pairs.items():
        missing = {public for public in dir(theirs) if public[0] != "_" and not hasattr(ours, public)}
        assert missing == set(), name
