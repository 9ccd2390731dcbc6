"""`gptoss-jax harmony render`: a conversation → text with special tokens, or token ids."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from gptoss_jax.commands.harmony.inputs import load_vocabulary, read_conversation, source_name
from gptoss_jax.commands.harmony.rendering import rendered_conversation, runs
from gptoss_jax.terminal import is_terminal, printable, write
from harmony import HarmonyEncoding, RenderConversationConfig


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    conversation = read_conversation(options.file, options.form, options.date)
    encoding = load_vocabulary(options.vocabulary)
    config = RenderConversationConfig(
        analysis_policy=options.analysis or ("none" if options.purpose == "conversation" else "compatible"),
        schema_form=options.schema,
        recipient_place=options.recipient,
    )
    source = source_name(options.file)
    tokens = rendered_conversation(encoding, conversation, config, options.purpose, source)
    if options.tokens:
        write(" ".join(map(str, tokens)) + "\n")
        return 0
    for text in _lookalikes(encoding, tokens):
        print(
            f"gptoss-jax: {source} has {text} as ordinary text, which looks like the special token here: "
            "only --tokens shows the difference",
            file=sys.stderr,
        )
    if is_terminal():
        write(printable(encoding.decode(tokens)) + "\n")
    else:  # exactly the text, without a line break, so that a pipe or a file has nothing else
        write(encoding.decode_bytes(tokens))
    return 0


def _lookalikes(encoding: HarmonyEncoding, tokens: Sequence[int]) -> list[str]:
    """The special tokens whose names occur as ordinary text, each once."""
    names = re.compile("|".join(map(re.escape, sorted(encoding.special_tokens_set))))
    found: dict[str, None] = {}
    for is_special, part in runs(encoding, tokens):
        if not is_special:
            found.update(dict.fromkeys(names.findall(encoding.decode(part))))
    return list(found)
