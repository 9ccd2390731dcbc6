"""Lets the model use the built-in tools; the browser has documents of this program's own."""

import asyncio
from collections.abc import Sequence

from gptoss_jax import LLM, SamplingParams
from gptoss_jax.tools import Tool, ToolSessions
from gptoss_jax.tools.browser.backend import BackendError, Document, Hit
from gptoss_jax.tools.browser.tool import BrowserTool
from gptoss_jax.tools.python.limits import PythonLimits
from gptoss_jax.tools.python.tool import PythonTool
from harmony import Message, Role, SystemContent

NOTES = {"tea": "Green tea takes two minutes.", "coffee": "Coffee takes four minutes."}


class Notes:
    """A back end of a few notes, which are found by their words."""

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """The notes that have a word of the query."""
        words = query.lower().split()
        found = [(name, text) for name, text in NOTES.items() if any(word in text.lower() for word in words)]
        return [Hit(name, name, text) for name, text in found[:count]]

    async def open(self, address: str) -> Document:
        """The note of this name."""
        if address not in NOTES:
            raise BackendError(f"there is no note {address!r}")
        return Document(address, "markdown", NOTES[address])

    def resolve(self, link: str, base: str) -> str | None:
        """Links lead to other notes."""
        return link if link in NOTES else None

    def site(self, address: str) -> str:
        """All notes belong together."""
        return ""


async def answer(llm: LLM, question: str, tools: Sequence[Tool]) -> str:
    """The answer to a question, after at most ten rounds of calls."""
    sessions = ToolSessions(tools)
    messages = [
        Message.from_role_and_content(Role.SYSTEM, SystemContent()),
        Message.from_role_and_content(Role.USER, question),
    ]
    declared = [tool.declaration for tool in tools]
    try:
        for _ in range(10):
            (made,) = await llm.agenerate(messages, SamplingParams(temperature=0), built_in_tools=declared)
            messages += made.messages
            calls = [call.message for call in made.tool_calls if sessions.owns(call.message)]
            if not calls:
                return made.text
            for call in calls:
                messages.append(await sessions.run(call))
        return "no answer after ten rounds"
    finally:
        await sessions.close()


async def main() -> None:
    """Calls the tools as a model would, then asks the embedded model, which was not trained to use them."""
    tools: list[Tool] = [PythonTool(PythonLimits(seconds=10)), BrowserTool(Notes())]
    sessions = ToolSessions(tools)
    for recipient, content in (
        ("python", "print(sum(range(10)))"),
        ("browser.search", '{"query": "minutes tea"}'),
        ("browser.open", '{"id": 0}'),
    ):
        call = Message.from_role_and_content(Role.ASSISTANT, content)
        result = await sessions.run(call.with_recipient(recipient).with_channel("analysis"))
        print(result.content[0].text, end="\n\n")
    await sessions.close()
    with LLM("tiny") as llm:
        print(await answer(llm, "What is 2 + 3?", tools))


if __name__ == "__main__":
    asyncio.run(main())
