"""`gptoss-jax generate`: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from gptoss_jax.commands.options import add_model_options, add_sampling_options, load_engine, sampling_of


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "generate",
        help="answer one prompt",
        description="Answer one prompt. On a terminal the reasoning is shown dimmed above the answer; "
        "elsewhere only the answer is printed.",
        allow_abbrev=False,
    )
    parser.add_argument("text", help="the user's message; - reads it from standard input")
    parser.add_argument("--instructions", metavar="TEXT", help="instructions that go before the message")
    parser.add_argument(
        "--schema",
        type=Path,
        metavar="FILE.json",
        help="a JSON Schema that the answer must follow: it is shown to the model and enforced",
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    add_model_options(parser)
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    import datetime

    from gptoss_jax.batch.answers import answer_row, read_sample
    from gptoss_jax.batch.fields import RowError
    from gptoss_jax.batch.rows import Envelope, RowContext, prepare

    text = sys.stdin.read() if options.text == "-" else options.text
    if not text.strip():
        raise RowError("invalid_request", "the text is empty: give the user's message")
    messages = [{"role": "user", "content": text}]
    if options.instructions:
        messages.insert(0, {"role": "developer", "content": options.instructions})
    body: dict[str, Any] = {"messages": messages, "seed": options.seed}
    if options.schema:
        form = {"name": "answer", "strict": True, "schema": _read_schema(options.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    engine, encoding, _ = load_engine(options, slots=1)
    with engine:
        if not engine.speaks:
            engine.follow()
            return 0
        context = RowContext(
            engine=engine,
            encoding=encoding,
            sampling=sampling_of(options),
            seed=options.seed,
            effort=options.effort,
            date=options.date or datetime.date.today().isoformat(),
        )
        prepared = prepare(body, Envelope(line=1, id="prompt", shape="plain"), context)
        samples = [read_sample(completion, encoding) for completion in engine.run([prepared.request])]
    row = answer_row(prepared, samples, model=options.checkpoint, run="generate")
    if options.json:
        del row["id"], row["error"]
        print(json.dumps(row, ensure_ascii=False, indent=2))
    else:
        _show(row)
    if row["finish_reason"] == "length":
        generated = row["usage"]["completion_tokens"]
        print(f"gptoss-jax: the answer was cut after {generated} tokens", file=sys.stderr)
    return 0 if row["text"] or row["tool_calls"] else 1


def _read_schema(path: Path) -> Any:
    from gptoss_jax.batch.fields import RowError

    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise RowError("invalid_json", f"{path} is not valid JSON: {reason}") from None


def _show(row: dict[str, Any]) -> None:
    if sys.stdout.isatty() and row["reasoning"]:
        dim, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        print(f"{dim}{row['reasoning']}{plain}\n")
    if row["text"]:
        print(row["text"])
