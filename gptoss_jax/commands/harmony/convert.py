"""`gptoss-jax harmony convert`: any form of a conversation → harmony's JSON or ChatML."""

from __future__ import annotations

import argparse
import sys

from gptoss_jax.commands.harmony.inputs import read_conversation, source_name
from gptoss_jax.terminal import is_terminal, json_text, printable, write
from harmony import Conversation, HarmonyFormatError
from harmony.chatml import chatml_from_conversation
from harmony.chatml_losses import lost_in_chatml


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    conversation = read_conversation(options.file, options.form, options.date)
    if options.to == "harmony":
        write(json_text(conversation.to_dict()) + "\n")
        return 0
    text = chatml_of(conversation, source_name(options.file))
    write(printable(text) if is_terminal() else text)
    sys.stdout.flush()
    for lost in losses_by_message(conversation):
        print(f"gptoss-jax: lost in ChatML: {lost}", file=sys.stderr)
    return 0


def losses_by_message(conversation: Conversation) -> list[str]:
    """One line for each message that loses something in ChatML: which message, and what it loses."""
    lines: dict[int, list[str]] = {}
    for lost in lost_in_chatml(conversation):
        lines.setdefault(lost.message, []).append(lost.detail)
    return [printable(f"messages[{number}]: {', '.join(details)}") for number, details in lines.items()]


def chatml_of(conversation: Conversation, source: str) -> str:
    """The conversation as ChatML. Raises HarmonyFormatError, which names the input `source`."""
    try:
        return chatml_from_conversation(conversation)
    except HarmonyFormatError as error:
        raise HarmonyFormatError(f"{source}: {error}") from None
