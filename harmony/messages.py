"""The parts of a conversation: roles, contents, messages.

Names and behaviour are those of `openai_harmony`, so a program switches by changing its import. Beyond it,
`model_dump` and `to_dict` lose nothing, a tool's description is optional, and developer content can hold
response formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny

from .json_types import JsonObject

DEFAULT_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
DEFAULT_KNOWLEDGE_CUTOFF = "2024-06"


class Role(str, Enum):  # noqa: UP042 - str(Role.USER) is 'Role.USER', as users of openai_harmony expect
    """Who wrote a message.

    Where instructions contradict each other, the system's come first, then the developer's, the user's, the
    assistant's and a tool's.
    """

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"
    TOOL = "tool"

    @classmethod
    def _missing_(cls, value: object) -> Role:
        raise ValueError(f"Unknown role: {value!r}")


class Author(BaseModel):
    """A role and a name. A tool needs a name; for other roles it is optional (None: no name)."""

    role: Role
    name: str | None = None

    @classmethod
    def new(cls, role: Role, name: str) -> Author:
        """An author with this name."""
        return cls(role=role, name=name)


class ReasoningEffort(str, Enum):  # noqa: UP042 - as Role
    """How much the model should reason before it answers."""

    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"


EFFORT_WORDS: dict[str, ReasoningEffort] = {
    "none": ReasoningEffort.LOW,
    "minimal": ReasoningEffort.LOW,
    "low": ReasoningEffort.LOW,
    "medium": ReasoningEffort.MEDIUM,
    "high": ReasoningEffort.HIGH,
    "xhigh": ReasoningEffort.HIGH,
    "max": ReasoningEffort.HIGH,
}
"""The words for reasoning effort that API clients send → the three levels that the model was trained on."""


class Content(BaseModel):
    """One part of a message's content."""

    def to_dict(self) -> JsonObject:
        """The part as JSON data, with its `type`. Raises NotImplementedError: each subclass has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no to_dict: use TextContent or another content")


class TextContent(Content):
    """Text. It is always encoded as ordinary text, even if it looks like a special token."""

    type: Literal["text"] = Field(default="text", repr=False)
    text: str

    def to_dict(self) -> JsonObject:
        """The part as JSON data, with its `type`."""
        return {"type": "text", "text": self.text}


class ToolDescription(BaseModel):
    """A function that the model may call.

    `parameters` is the JSON Schema of its arguments; None: it takes none.
    """

    name: str
    description: str = ""
    parameters: dict[Any, Any] | None = None

    @classmethod
    def new(cls, name: str, description: str = "", parameters: JsonObject | None = None) -> ToolDescription:
        """A function with these fields."""
        return cls(name=name, description=description, parameters=parameters)


class ChannelConfig(BaseModel):
    """The channels that the system message lists.

    With `channel_required` True, the system message says that every message must have one.
    """

    valid_channels: list[str]
    channel_required: bool

    @classmethod
    def require_channels(cls, channels: list[str]) -> ChannelConfig:
        """These channels; every message must have one of them."""
        return cls(valid_channels=channels, channel_required=True)


class ToolNamespaceConfig(BaseModel):
    """A namespace of functions, or a tool without functions such as `python` (`tools` is empty then)."""

    name: str
    description: str | None = None
    tools: list[ToolDescription]

    @staticmethod
    def browser() -> ToolNamespaceConfig:
        """The built-in browser, described in the words that the model was trained on."""
        from .builtin_tools import BROWSER

        return ToolNamespaceConfig.model_validate(BROWSER)

    @staticmethod
    def python() -> ToolNamespaceConfig:
        """The built-in Python session, described in the words that the model was trained on."""
        from .builtin_tools import PYTHON

        return ToolNamespaceConfig.model_validate(PYTHON)


class ResponseFormat(BaseModel):
    """A JSON Schema that the answer should follow: an entry of the section `# Response Formats`."""

    name: str
    description: str | None = None
    json_schema: dict[Any, Any]


def _without_none(model: BaseModel) -> dict[str, Any]:
    """The model as data, without the fields that are None by default.

    A None that replaced another default stays, so that reading the data gives an equal model.
    """
    data = model.model_dump(warnings=False)
    for name, field in type(model).model_fields.items():
        if data[name] is None and field.get_default(call_default_factory=True) is None:
            del data[name]
    for namespace in (data.get("tools") or {}).values():
        if namespace["description"] is None:
            del namespace["description"]
        for tool in namespace["tools"]:
            if tool["parameters"] is None:
                del tool["parameters"]
    return data


class SystemContent(Content):
    """What the system message says: the model's identity, dates, effort, built-in tools, channels.

    A field that is None is left out of the message.
    """

    type: Literal["system_content"] = Field(default="system_content", repr=False)
    model_identity: str | None = DEFAULT_IDENTITY
    reasoning_effort: ReasoningEffort | None = ReasoningEffort.MEDIUM
    conversation_start_date: str | None = None
    knowledge_cutoff: str | None = DEFAULT_KNOWLEDGE_CUTOFF
    channel_config: ChannelConfig | None = Field(
        default_factory=lambda: ChannelConfig.require_channels(["analysis", "commentary", "final"])
    )
    tools: dict[str, ToolNamespaceConfig] | None = None

    @classmethod
    def new(cls) -> SystemContent:
        """System content with the default of every field."""
        return cls()

    def with_model_identity(self, model_identity: str) -> SystemContent:
        """Sets the first line, which says what the model is."""
        self.model_identity = model_identity
        return self

    def with_reasoning_effort(self, reasoning_effort: ReasoningEffort) -> SystemContent:
        """Sets the reasoning effort."""
        self.reasoning_effort = reasoning_effort
        return self

    def with_conversation_start_date(self, conversation_start_date: str) -> SystemContent:
        """Sets the current date, as `YYYY-MM-DD`."""
        self.conversation_start_date = conversation_start_date
        return self

    def with_knowledge_cutoff(self, knowledge_cutoff: str) -> SystemContent:
        """Sets the end of the training data, as `YYYY-MM`."""
        self.knowledge_cutoff = knowledge_cutoff
        return self

    def with_channel_config(self, channel_config: ChannelConfig) -> SystemContent:
        """Sets the list of channels."""
        self.channel_config = channel_config
        return self

    def with_required_channels(self, channels: list[str]) -> SystemContent:
        """Sets the list of channels; every message must have one of them."""
        self.channel_config = ChannelConfig.require_channels(channels)
        return self

    def with_tools(self, ns_config: ToolNamespaceConfig) -> SystemContent:
        """Adds a namespace of tools, replacing one of the same name."""
        self.tools = {**(self.tools or {}), ns_config.name: ns_config}
        return self

    def with_browser_tool(self) -> SystemContent:
        """Adds the built-in browser to the tools."""
        return self.with_tools(ToolNamespaceConfig.browser())

    def with_python_tool(self) -> SystemContent:
        """Adds the built-in Python session to the tools."""
        return self.with_tools(ToolNamespaceConfig.python())

    def to_dict(self) -> JsonObject:
        """The part as JSON data, with its `type`."""
        return _without_none(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> SystemContent:
        """Inverse of `to_dict`."""
        return cls(**raw)


class DeveloperContent(Content):
    """What the developer message says: instructions, functions, response formats.

    A field that is None is left out of the message.
    """

    type: Literal["developer_content"] = Field(default="developer_content", repr=False)
    instructions: str | None = None
    tools: dict[str, ToolNamespaceConfig] | None = None
    response_formats: list[ResponseFormat] | None = None

    @classmethod
    def new(cls) -> DeveloperContent:
        """Developer content with nothing in it."""
        return cls()

    def with_instructions(self, instructions: str) -> DeveloperContent:
        """Sets the instructions."""
        self.instructions = instructions
        return self

    def with_tools(self, ns_config: ToolNamespaceConfig) -> DeveloperContent:
        """Adds a namespace of tools, replacing one of the same name."""
        self.tools = {**(self.tools or {}), ns_config.name: ns_config}
        return self

    def with_function_tools(self, tools: Sequence[ToolDescription]) -> DeveloperContent:
        """Sets the functions that the model may call, as the namespace `functions`."""
        return self.with_tools(ToolNamespaceConfig(name="functions", description=None, tools=list(tools)))

    def with_response_format(
        self, name: str, json_schema: JsonObject, description: str | None = None
    ) -> DeveloperContent:
        """Adds a JSON Schema that the answer should follow."""
        added = ResponseFormat(name=name, description=description, json_schema=json_schema)
        self.response_formats = [*(self.response_formats or []), added]
        return self

    def to_dict(self) -> JsonObject:
        """The part as JSON data, with its `type`."""
        return _without_none(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> DeveloperContent:
        """Inverse of `to_dict`."""
        return cls(**raw)


_CONTENT_TYPES: dict[str, type[Content]] = {
    "text": TextContent,
    "system_content": SystemContent,
    "developer_content": DeveloperContent,
}


def read_content(raw: object) -> Any:
    """Reads content of any type, by its field `type`.

    What is not a dictionary is returned, for pydantic to check. Raises ValueError for an unknown `type`.
    """
    if not isinstance(raw, dict):
        return raw
    name = raw.get("type")
    kind = _CONTENT_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"Unknown content variant: {raw}")
    return kind(**raw)


AnyContent = Annotated[SerializeAsAny[Content], BeforeValidator(read_content)]


RecipientPlace = Literal["role", "channel"]

NOT_TOOLS = frozenset({"all", "assistant", "user", "developer", "system"})
"""Recipients that are not tools: a message to one of them is not a call."""


class Message(BaseModel):
    """One message: its author, its contents, and the other fields of its header.

    A `channel`, `recipient` or `content_type` of None is absent from the header. `recipient_place` says where
    the header has ` to=`: after the "role", or after the "channel", as models often write it. A parsed
    message keeps it, so that history is rendered as it was sampled. Two messages that differ only in it are
    equal.
    """

    author: Author
    content: list[AnyContent] = Field(default_factory=list)
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    recipient_place: RecipientPlace = Field(default="role", repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        names = ("author", "content", "channel", "recipient", "content_type")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @classmethod
    def from_author_and_content(cls, author: Author, content: str | Content) -> Message:
        """A message with one part; a string becomes a text part."""
        return cls(author=author, content=[_part(content)])

    @classmethod
    def from_role_and_content(cls, role: Role, content: str | Content) -> Message:
        """A message with one part; a string becomes a text part."""
        return cls.from_author_and_content(Author(role=role), content)

    @classmethod
    def from_role_and_contents(cls, role: Role, contents: Sequence[Content]) -> Message:
        """A message with several parts, which are rendered one after another."""
        return cls(author=Author(role=role), content=list(contents))

    def adding_content(self, content: str | Content) -> Message:
        """Adds a part; a string becomes a text part."""
        self.content.append(_part(content))
        return self

    def with_channel(self, channel: str) -> Message:
        """Sets the channel."""
        self.channel = channel
        return self

    def with_recipient(self, recipient: str) -> Message:
        """Sets the recipient. In a call it is the tool's name."""
        self.recipient = recipient
        return self

    def with_content_type(self, content_type: str) -> Message:
        """Sets the content type. In a function call it is `<|constrain|>json`."""
        self.content_type = content_type
        return self

    @property
    def is_call(self) -> bool:
        """True for a call: an assistant message whose recipient is a tool. The channel does not matter."""
        is_to_tool = self.recipient is not None and self.recipient not in NOT_TOOLS
        return self.author.role is Role.ASSISTANT and is_to_tool

    def to_dict(self) -> JsonObject:
        """The message as JSON data."""
        out: JsonObject = {
            **self.author.model_dump(),
            "content": [part.to_dict() for part in self.content],
        }
        for name in ("channel", "recipient", "content_type"):
            value = getattr(self, name)
            if value is not None:
                out[name] = value
        if self.recipient_place != "role":
            out["recipient_place"] = self.recipient_place
        return out

    def to_json(self) -> str:
        """The message as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Message:
        """The message of `to_dict`'s data; a string as content becomes one text part.

        Raises KeyError for a missing field, ValueError for an unknown role or content type, and pydantic's
        ValidationError, a ValueError, for a field of the wrong type.
        """
        raw = data["content"]
        parts = [{"type": "text", "text": raw}] if isinstance(raw, str) else raw
        return cls(
            author=Author(role=Role(data["role"]), name=data.get("name")),
            content=[read_content(part) for part in parts],
            channel=data.get("channel"),
            recipient=data.get("recipient"),
            content_type=data.get("content_type"),
            recipient_place=data.get("recipient_place", "role"),
        )


def _part(content: str | Content) -> Content:
    return TextContent(text=content) if isinstance(content, str) else content


class Conversation(BaseModel):
    """Messages in order."""

    messages: list[Message] = Field(default_factory=list)

    @classmethod
    def from_messages(cls, messages: Sequence[Message]) -> Conversation:
        """A conversation of these messages."""
        return cls(messages=list(messages))

    def __iter__(self) -> Iterator[Message]:  # type: ignore[override]
        return iter(self.messages)

    def to_dict(self) -> JsonObject:
        """The conversation as JSON data."""
        return {"messages": [message.to_dict() for message in self.messages]}

    def to_json(self) -> str:
        """The conversation as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, payload: str) -> Conversation:
        """The conversation of `to_json`'s text.

        Raises ValueError for invalid JSON, else as `Message.from_dict`.
        """
        data = json.loads(payload)
        return cls(messages=[Message.from_dict(message) for message in data["messages"]])
