"""The grader of rubrics: a model that says, item by item, what an answer meets."""

from __future__ import annotations

import json
import re

from gptoss_jax.evals.healthbench import Verdict

_FENCES = re.compile(r"^```json\s*|\s*```$")
"""What the harness takes off a reply: a fence of Markdown around it."""


def read_reply(text: str) -> Verdict | None:
    """Reads a grader's reply as the harness does.

    The reply is a JSON object whose "criteria_met" is true or false, alone or in a fence of Markdown that
    begins with exactly "```json". Python's `json` decides what JSON is.

    Returns:
        The verdict. None if the reply is something else. Then the harness asks again; at some such replies,
        for example a bare number, its code fails instead.
    """
    try:
        reply = json.loads(_FENCES.sub("", text.strip()))
    except (ValueError, RecursionError):
        return None
    met = reply.get("criteria_met") if isinstance(reply, dict) else None
    if not isinstance(met, bool):
        return None
    explanation = reply.get("explanation", "")
    return Verdict(met, explanation if isinstance(explanation, str) else json.dumps(explanation))
