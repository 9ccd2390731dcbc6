"""The text of system and developer messages: sections separated by blank lines.

Contents must have been through `plain.plain_message`, so that their fields have the types they declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from . import typescript, typescript_improved
from .messages import DeveloperContent, ResponseFormat, SystemContent, ToolDescription, ToolNamespaceConfig
from .numbers import compact_json

SchemaForm = Literal["compatible", "improved"]

FUNCTIONS_LINE = "Calls to these tools must go to the commentary channel: 'functions'."


def system_text(content: SystemContent, has_function_tools: bool, form: SchemaForm) -> str:
    """The text of a system message; `has_function_tools` is True if a developer message defines functions."""
    top = []
    if content.model_identity is not None:
        top.append(content.model_identity)
    if content.knowledge_cutoff is not None:
        top.append(f"Knowledge cutoff: {content.knowledge_cutoff}")
    if content.conversation_start_date is not None:
        top.append(f"Current date: {content.conversation_start_date}")
    sections = ["\n".join(top)] if top else []
    if content.reasoning_effort is not None:
        sections.append(f"Reasoning: {content.reasoning_effort.value.lower()}")
    if content.tools:
        sections.append(tools_text(content.tools, form))
    channels = content.channel_config
    if channels is not None and channels.valid_channels:
        line = f"# Valid channels: {', '.join(channels.valid_channels)}."
        if channels.channel_required:
            line += " Channel must be included for every message."
        if has_function_tools:
            line += "\n" + FUNCTIONS_LINE
        sections.append(line)
    return "\n\n".join(sections)


def developer_text(content: DeveloperContent, form: SchemaForm) -> str:
    """The text of a developer message: instructions, tools, response formats."""
    sections = []
    if content.instructions is not None:
        sections += ["# Instructions", content.instructions]
    if content.tools:
        sections.append(tools_text(content.tools, form))
    if content.response_formats:
        sections.append("# Response Formats")
        sections += map(_response_format_text, content.response_formats)
    return "\n\n".join(sections)


def defines_functions(content: DeveloperContent) -> bool:
    """Whether the namespace `functions` has at least one function."""
    namespace = (content.tools or {}).get("functions")
    return namespace is not None and bool(namespace.tools)


def tools_text(tools: Mapping[str, ToolNamespaceConfig], form: SchemaForm) -> str:
    """The section `# Tools`, with its namespaces sorted by key."""
    return "\n\n".join(["# Tools", *(_namespace_text(tools[key], form) for key in sorted(tools))])


def _namespace_text(namespace: ToolNamespaceConfig, form: SchemaForm) -> str:
    lines = [f"## {namespace.name}\n"]
    description = _lines(namespace.description or "")
    if not namespace.tools:
        return "\n".join(lines + description)
    lines += [f"// {line}" for line in description]
    lines.append(f"namespace {namespace.name} {{\n")
    for tool in namespace.tools:
        argument, named = _argument(tool, form)
        lines += [f"type {name} = {text};\n" for name, text in named.items()]
        lines += [f"// {line}" for line in _lines(tool.description)]
        lines.append(f"type {tool.name} = ({argument}) => any;\n")
    lines.append(f"}} // namespace {namespace.name}")
    return "\n".join(lines)


def _argument(tool: ToolDescription, form: SchemaForm) -> tuple[str, dict[str, str]]:
    """What a function has in its parentheses, and the named types used there: name → type."""
    if tool.parameters is None:
        return "", {}
    if form == "compatible":
        return f"_: {typescript.compatible(tool.parameters)}", {}
    text, named = typescript_improved.improved(tool.parameters, f"{tool.name}_")
    return ("" if text == "object" else f"_: {text}"), named


def _response_format_text(form: ResponseFormat) -> str:
    comments = [f"// {line}" for line in _lines(form.description or "")]
    return "\n".join([f"## {form.name}\n", *comments, compact_json(form.json_schema)])


def _lines(text: str) -> list[str]:
    """Splits as Rust's `str::lines` does: at `\\n` and `\\r\\n` only, without an empty line at the end."""
    *ended, rest = text.split("\n")
    lines = [line.removesuffix("\r") for line in ended]
    return [*lines, rest] if rest else lines
