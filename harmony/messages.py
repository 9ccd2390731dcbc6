"""What a conversation is made of: roles, contents, messages.

The names and the behaviour are those of the `openai_harmony` package, so that switching is an import line.
Beyond it: `model_dump` and `to_dict` lose nothing, descriptions of tools are optional, and developer
content can hold response formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny

DEFAULT_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
DEFAULT_KNOWLEDGE_CUTOFF = "2024-06"


class Role(str, Enum):  # noqa: UP042 - str(Role.USER) is known to be 'Role.USER'
    """Who speaks. Instructions of a role outrank those of the roles below it here."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"
    TOOL = "tool"

    @classmethod
    def _missing_(cls, value: object) -> Role:
        raise ValueError(f"Unknown role: {value!r}")


class Author(BaseModel):
    """A role and, for tools always and for others at times, a name."""

    role: Role
    name: str | None = None

    @classmethod
    def new(cls, role: Role, name: str) -> Author:
        """An author with a name."""
        return cls(role=role, name=name)


class ReasoningEffort(str, Enum):  # noqa: UP042 - as Role
    """How long the model thinks."""

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
"""The effort words that clients send, mapped to the three levels that the model was trained on."""


class Content(BaseModel):
    """One part of a message's content."""

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON data, with its `type`."""
        raise TypeError(f"{type(self).__name__} is not a content: use TextContent or another subclass")


class TextContent(Content):
    """Text. It is always encoded as ordinary text, whatever it looks like."""

    type: Literal["text"] = Field(default="text", repr=False)
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON data, with its `type`."""
        return {"type": "text", "text": self.text}


class ToolDescription(BaseModel):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None

    @classmethod
    def new(
        cls, name: str, description: str = "", parameters: dict[str, Any] | None = None
    ) -> ToolDescription:
        """A function that the model may call."""
        return cls(name=name, description=description, parameters=parameters)


class ChannelConfig(BaseModel):
    """The channels that the system message allows."""

    valid_channels: list[str]
    channel_required: bool

    @classmethod
    def require_channels(cls, channels: list[str]) -> ChannelConfig:
        """These channels, one of which every message must carry."""
        return cls(valid_channels=channels, channel_required=True)


class ToolNamespaceConfig(BaseModel):
    """A namespace of functions, or a tool without functions such as `python`."""

    name: str
    description: str | None = None
    tools: list[ToolDescription]

    @staticmethod
    def browser() -> ToolNamespaceConfig:
        """The browser, in the words that the model was trained on."""
        from .builtin_tools import BROWSER

        return ToolNamespaceConfig.model_validate(BROWSER)

    @staticmethod
    def python() -> ToolNamespaceConfig:
        """The stateful Python session, in the words that the model was trained on."""
        from .builtin_tools import PYTHON

        return ToolNamespaceConfig.model_validate(PYTHON)


class ResponseFormat(BaseModel):
    """A JSON Schema that answers should follow: a section of `# Response Formats`."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any]


def _without_none(model: BaseModel) -> dict[str, Any]:
    """The model as data, leaving out each None that the reader puts back by itself.

    A None in place of another default stays, so that reading gives an equal model.
    """
    data = model.model_dump()
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
    """What the system message says: who the model is, dates, effort, built-in tools, channels."""

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
        """The default system content."""
        return cls()

    def with_model_identity(self, model_identity: str) -> SystemContent:
        """Sets the first line."""
        self.model_identity = model_identity
        return self

    def with_reasoning_effort(self, reasoning_effort: ReasoningEffort) -> SystemContent:
        """Sets the effort."""
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
        """Sets the channels."""
        self.channel_config = channel_config
        return self

    def with_required_channels(self, channels: list[str]) -> SystemContent:
        """Sets the channels, one of which every message must carry."""
        self.channel_config = ChannelConfig.require_channels(channels)
        return self

    def with_tools(self, ns_config: ToolNamespaceConfig) -> SystemContent:
        """Adds a namespace of tools, replacing one of the same name."""
        self.tools = {**(self.tools or {}), ns_config.name: ns_config}
        return self

    def with_browser_tool(self) -> SystemContent:
        """Adds the built-in browser."""
        return self.with_tools(ToolNamespaceConfig.browser())

    def with_python_tool(self) -> SystemContent:
        """Adds the built-in Python session."""
        return self.with_tools(ToolNamespaceConfig.python())

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON data, with its `type`."""
        return _without_none(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> SystemContent:
        """Inverse of `to_dict`."""
        return cls(**raw)


class DeveloperContent(Content):
    """What the developer message says: instructions, functions, response formats."""

    type: Literal["developer_content"] = Field(default="developer_content", repr=False)
    instructions: str | None = None
    tools: dict[str, ToolNamespaceConfig] | None = None
    response_formats: list[ResponseFormat] | None = None

    @classmethod
    def new(cls) -> DeveloperContent:
        """Empty developer content."""
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
        """Sets the functions: the namespace `functions`."""
        return self.with_tools(ToolNamespaceConfig(name="functions", description=None, tools=list(tools)))

    def with_response_format(
        self, name: str, json_schema: dict[str, Any], description: str | None = None
    ) -> DeveloperContent:
        """Adds a schema that answers should follow."""
        added = ResponseFormat(name=name, description=description, json_schema=json_schema)
        self.response_formats = [*(self.response_formats or []), added]
        return self

    def to_dict(self) -> dict[str, Any]:
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


def _content(raw: Any) -> Any:
    """Reads a content of any type by its `type`; leaves what is no dictionary to pydantic."""
    if not isinstance(raw, dict):
        return raw
    kind = _CONTENT_TYPES.get(raw.get("type", ""))
    if kind is None:
        raise ValueError(f"Unknown content variant: {raw}")
    return kind(**raw)


AnyContent = Annotated[SerializeAsAny[Content], BeforeValidator(_content)]


RecipientPlace = Literal["role", "channel"]

_NOT_TOOLS = frozenset({"all", "assistant", "user", "developer", "system"})


class Message(BaseModel):
    """One message: an author, contents, and what its header says.

    `recipient_place` says where the header has ` to=`: after the role, or after the channel, as models
    often write it. It is kept so that history is rendered as it was sampled; equality ignores it.
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
        """A message with one part; a string means text."""
        return cls(author=author, content=[_part(content)])

    @classmethod
    def from_role_and_content(cls, role: Role, content: str | Content) -> Message:
        """A message with one part; a string means text."""
        return cls.from_author_and_content(Author(role=role), content)

    @classmethod
    def from_role_and_contents(cls, role: Role, contents: Sequence[Content]) -> Message:
        """A message with several parts, which are rendered one after another."""
        return cls(author=Author(role=role), content=list(contents))

    def adding_content(self, content: str | Content) -> Message:
        """Adds a part; a string means text."""
        self.content.append(_part(content))
        return self

    def with_channel(self, channel: str) -> Message:
        """Sets the channel."""
        self.channel = channel
        return self

    def with_recipient(self, recipient: str) -> Message:
        """Sets the recipient, for a call the tool's name."""
        self.recipient = recipient
        return self

    def with_content_type(self, content_type: str) -> Message:
        """Sets the content type, for a function call `<|constrain|>json`."""
        self.content_type = content_type
        return self

    @property
    def is_call(self) -> bool:
        """Whether the assistant calls a tool: told by the recipient, whatever the channel."""
        is_to_tool = self.recipient is not None and self.recipient not in _NOT_TOOLS
        return self.author.role is Role.ASSISTANT and is_to_tool

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON data."""
        out: dict[str, Any] = {
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
        """Inverse of `to_dict`; a string as content means one text part."""
        raw = data["content"]
        parts = [{"type": "text", "text": raw}] if isinstance(raw, str) else raw
        return cls(
            author=Author(role=Role(data["role"]), name=data.get("name")),
            content=[_content(part) for part in parts],
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

    def to_dict(self) -> dict[str, Any]:
        """The conversation as JSON data."""
        return {"messages": [message.to_dict() for message in self.messages]}

    def to_json(self) -> str:
        """The conversation as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, payload: str) -> Conversation:
        """Inverse of `to_json`."""
        data = json.loads(payload)
        return cls(messages=[Message.from_dict(message) for message in data["messages"]])
