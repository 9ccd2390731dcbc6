"""The messages of a completion → the items of a response's `output`, one at a time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gptoss_jax.answers import Sample, kind_of, text_of
from gptoss_jax.openai_api.built_in import ITEM_TYPES, call_item, carried
from gptoss_jax.openai_api.logprobs import logprob_entries
from harmony.openai_formats import responses_output_from

if TYPE_CHECKING:
    from gptoss_jax.answers import BuiltInCall, ScoredToken
    from harmony import HarmonyEncoding, Message

Seal = Callable[[str], str]
"""Encrypts a chain of thought, so that a client can send it back and cannot read it."""


@dataclasses.dataclass(frozen=True)
class ItemMaker:
    """Makes the items of one response.

    unique: what the items' ids are made of.
    with_reasoning: whether the chain of thought stands in its items as text.
    seal: what makes the `encrypted_content` of reasoning items; None for items without it.
    with_outputs: whether calls of the code interpreter have their outputs.
    summaries: the summaries of reasoning, by the numbers of its messages; None if none are wanted.

    What built-in tools were told and answered is seen where the chain of thought is.
    """

    encoding: HarmonyEncoding
    unique: str
    with_reasoning: bool = True
    seal: Seal | None = None
    with_outputs: bool = False
    summaries: Mapping[int, str] | None = None

    def is_shown(self, message: Message) -> bool:
        """Whether a message becomes an item.

        Messages without text do not, unless they are calls; nor do those of other roles than the assistant's,
        which a model can only have made up; nor does reasoning that is neither shown, sealed nor summarised.
        """
        kind = kind_of(message)
        if kind == "call":
            return True
        if kind is None or not text_of(message):
            return False
        is_wanted = self.with_reasoning or self.seal is not None or self.summaries is not None
        return kind != "reasoning" or is_wanted

    def item(self, message: Message, number: int, tokens: Sequence[ScoredToken] = ()) -> dict[str, Any]:
        """The item of the `number`-th message of a completion.

        Its id is made of that number, so that it is the same whether reasoning is shown or not. `tokens` are
        those of the message's text, if log-probabilities are wanted.
        """
        (item,) = responses_output_from(
            [message], item_id=lambda prefix, _: f"{prefix}_{self.unique}{number:02d}"
        )
        if item["type"] == "message":
            item["phase"] = "commentary" if kind_of(message) == "preamble" else "final_answer"
            item["content"][0]["logprobs"] = logprob_entries(tokens, self.encoding)
        elif item["type"] == "reasoning":
            if not self.with_reasoning:
                del item["content"]
            if self.seal is not None:
                item["encrypted_content"] = self.seal(text_of(message))
            if self.summaries is not None and number in self.summaries:
                item["summary"] = [{"type": "summary_text", "text": self.summaries[number]}]
        return item

    def built_in_item(self, call: BuiltInCall, number: int) -> dict[str, Any]:
        """The item of a built-in tool's call, the `number`-th message of a response.

        Its `extra_content` is what the next request needs of it, its `encrypted_content` the same, encrypted.
        """
        item = call_item(
            call, number, self.unique, is_shown=self.with_reasoning, with_outputs=self.with_outputs
        )
        extra = carried(call)
        if extra is not None and self.with_reasoning:
            item["extra_content"] = {"harmony": extra}
        if extra is not None and self.seal is not None:
            item["encrypted_content"] = self.seal(json.dumps(extra))
        return item

    def items(self, sample: Sample) -> list[dict[str, Any]]:
        """The items of a sample. That of a message at which the sample was cut is the last one."""
        scored = sample.text_tokens or [[] for _ in sample.messages]
        items = []
        for number, (message, tokens) in enumerate(zip(sample.messages, scored, strict=True)):
            call = sample.built_in_calls.get(number)
            if call is not None:
                items.append(self.built_in_item(call, number))
            elif self.is_shown(message):
                items.append(self.item(message, number, tokens))
        return with_status(items, sample)


def with_status(items: list[dict[str, Any]], sample: Sample) -> list[dict[str, Any]]:
    """The items, the last of them "incomplete" if the sample was cut.

    A call of a built-in tool has its own status.
    """
    if items and not is_whole(sample) and items[-1]["type"] not in ITEM_TYPES:
        items[-1]["status"] = "incomplete"
    return items


def is_whole(sample: Sample) -> bool:
    """Whether a sample ended by itself, and neither by a limit nor by its caller."""
    return sample.finish_reason in ("stop", "tool_calls")
