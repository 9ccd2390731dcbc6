"""What lm_eval asks for → prompts and sampling. Runs without lm_eval."""

import json
import re

import pytest

from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.engine.request import Request, RequestError
from gptoss_jax.lm_eval.arguments import Arguments, arguments_from
from gptoss_jax.lm_eval.prompts import context_of, prompt_of
from gptoss_jax.lm_eval.report import Tally
from gptoss_jax.lm_eval.sampling import answer_of, asked_by, sampling_for, seed_of
from tests.engine.processors import TO_FINAL, encode, encoding, words

PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"


def played(text_or_tokens, *, arguments=None, room=1000, prefix="", **asked):
    """(text of the answer, whether it was cut) where the model draws this; asked for by a task."""
    wanted = asked_by(asked)
    sampling = sampling_for(wanted, arguments or Arguments(), seed=1, room=room, prefix=prefix)
    tokens = encode(text_or_tokens) if isinstance(text_or_tokens, str) else text_or_tokens
    prompt = encode(PROMPT)
    processor = OutputProcessor(
        Request("r", prompt, sampling),
        0,
        encoding=encoding(),
        stop_tokens=frozenset(encode("<|return|><|call|>")),
        max_tokens=min(room, sampling.max_tokens or room),
        matcher=None,
        prompt=prompt,
    )
    kept, finish = [], None
    while tokens and finish is None:
        outcome = processor.process(tokens[: processor.allowance()])
        kept += [*tokens[: outcome.accepted], *outcome.forced]
        tokens, finish = tokens[outcome.accepted :], outcome.finish
    text = encoding().decode(kept).split("<|channel|>final<|message|>")[1:]
    said = re.sub(r"<\|return\|>$", "", text[0]) if text else ""
    return answer_of(prefix + said, wanted, prefix), finish


# Prompts


MESSAGES = [
    {"role": "system", "content": 'Say "yes".'},
    {"role": "user", "content": "Grüße\n\u2028 <|end|> 🙂"},
    {"role": "assistant", "content": "A: 1"},
    {"role": "user", "content": ""},
]


def test_messages_survive_the_text_that_lm_eval_keeps():
    prompt = prompt_of(context_of(MESSAGES, answer_begun=False))
    assert list(prompt.messages) == MESSAGES and prompt.prefix == ""


def test_an_answer_that_has_begun_is_its_prefix():
    begun = [*MESSAGES, {"role": "assistant", "content": "The best answer is"}]
    prompt = prompt_of(context_of(begun, answer_begun=True))
    assert list(prompt.messages) == MESSAGES and prompt.prefix == "The best answer is"


@pytest.mark.parametrize(
    "text", ["", "Q: 1\n\nA:", '{"gptoss_jax_chat"', '[{"role": "user"}]', "<|start|>user", "\ud800"]
)
def test_a_text_without_template_is_the_users_whatever_it_says(text):
    assert list(prompt_of(text).messages) == [{"role": "user", "content": text}]


def test_a_prompt_that_is_json_itself_is_no_chat():
    text = json.dumps([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])
    assert list(prompt_of(text).messages) == [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("messages", "begun", "line"),
    [
        ([], False, "the last message is that of None: it must be the user's"),
        ([{"role": "assistant", "content": "x"}], False, "the last message is that of assistant: it must be"),
        (
            [{"role": "user", "content": "x"}],
            True,
            "the last message is that of user: an answer that has begun",
        ),
        ([{"role": "tool", "content": "x"}], False, r"messages\[0\].role is 'tool': it must be system, "),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            False,
            r"messages\[0\].content is \[.*no images",
        ),
        ([{"role": "user"}], False, r"messages\[0\].content is None: it must be a text"),
    ],
)
def test_messages_that_make_no_prompt_are_refused(messages, begun, line):
    with pytest.raises(RequestError, match=f"^{line}"):
        context_of(messages, answer_begun=begun)


def test_a_task_that_appends_to_the_template_is_told():
    context = context_of(MESSAGES, answer_begun=False) + " Answer:"
    with pytest.raises(
        RequestError, match=r"the task changes the prompt .*Answer:.*without --apply_chat_temp"
    ):
        prompt_of(context)


# Stops


REASONING = "<|channel|>analysis<|message|>Question: one\n\nQuestion: two</s>"


def test_stop_strings_end_the_answer_and_not_the_reasoning():
    said = f"{REASONING}{TO_FINAL}It is 4.\n\nQuestion: three<|return|>"
    assert played(said, until=["Question:", "</s>"]) == ("It is 4.\n\n", "stop")
    assert played(said, until="\n\n") == ("It is 4.", "stop")
    assert played(said, until=[]) == ("It is 4.\n\nQuestion: three", "stop")


def test_more_stop_strings_than_the_engine_takes_all_count():
    said = f"{REASONING}{TO_FINAL}one two 20! three<|return|>"
    assert played(said, until=[*(f"{number}?" for number in range(40)), "", "20!"])[0] == "one two "


def test_a_prefix_may_hold_or_begin_a_stop_string():
    prefix = "Here it is:\n```python\ndef f():\n"
    said = f"{REASONING}{TO_FINAL}    return 1\n```\nDone.<|return|>"
    assert played(said, until=["\n```"], prefix=prefix)[0] == "    return 1"
    assert played(said, until=["\n    return"], prefix=prefix)[0] == "    return 1\n```\nDone."


def test_an_answer_cut_within_its_prefix_is_empty():
    assert answer_of("The best", asked_by({}), "The best answer is") == ""


@pytest.mark.parametrize(
    "prefix",
    [
        "The best answer is",
        "```python\ndef f(x: int) -> str:\n    # a-b & ~c",
        "".join(map(chr, range(1, 256))),
        "π 🙂",
    ],
)
def test_the_grammar_of_a_prefix_takes_texts_that_begin_with_it(prefix):
    sampling = sampling_for(asked_by({}), Arguments(), seed=0, room=100, prefix=prefix)
    pattern = sampling.grammar.final.text
    for text in (prefix, f"{prefix}\n.*\n"):
        assert re.fullmatch(pattern, text)
    for text in ("", prefix[1:], prefix[:-1], f" {prefix}", prefix.swapcase()):
        assert text == prefix or not re.fullmatch(pattern, text)


# Limits


def test_max_gen_toks_counts_the_answer_alone():
    reasoning = [*encode("<|channel|>analysis<|message|>"), *words(500), *encode(TO_FINAL)]
    cut, why = played([*reasoning, *words(30), *encode("<|return|>")], max_gen_toks=20)
    assert (cut, why) == (" word" * 20, "length")
    whole, why = played([*reasoning, *words(20), *encode("<|return|>")], max_gen_toks=21)
    assert (whole, why) == (" word" * 20, "stop")


@pytest.mark.parametrize("max_gen_toks", [None, 20, 300])
def test_endless_reasoning_leaves_room_for_the_answer(max_gen_toks):
    for room in (200, 1000):
        begun = encode("<|channel|>analysis<|message|>")
        sampling = sampling_for(asked_by({"max_gen_toks": max_gen_toks}), Arguments(), seed=0, room=room)
        left = room - len(begun) - sampling.reasoning_budget - len(encode(TO_FINAL))
        assert left >= min(max_gen_toks or room, room // 4)
        assert sampling.reasoning_budget >= room * 0.6


def test_max_tokens_counts_both():
    reasoning = [*encode("<|channel|>analysis<|message|>"), *words(500)]
    sampling = sampling_for(asked_by({}), Arguments(max_tokens=100), seed=0, room=1000)
    assert sampling.max_tokens == 100 and sampling.reasoning_budget < 80
    assert played(reasoning, arguments=Arguments(max_tokens=100, reasoning_budget=0)) == ("", "length")


def test_a_reasoning_budget_of_zero_is_no_limit():
    assert sampling_for(asked_by({}), Arguments(reasoning_budget=0), seed=0, room=99).reasoning_budget is None
    assert sampling_for(asked_by({}), Arguments(reasoning_budget=7), seed=0, room=99).reasoning_budget == 7


def test_the_models_limit_holds_where_a_task_has_none():
    assert asked_by({}, 9).max_gen_toks == 9
    assert asked_by({"max_gen_toks": 7}, 9).max_gen_toks == 7
    assert asked_by({"max_new_tokens": "6", "max_completion_tokens": 5}).max_gen_toks == 6


# Sampling


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({}, 0),
        ({"do_sample": False, "temperature": 0.7}, 0),
        ({"temperature": "0.7"}, 0.7),
        ({"do_sample": True}, 1),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
        ({"do_sample": True, "temperature": 0}, 0),
    ],
)
def test_temperature_by_the_rules_of_lm_eval(given, temperature):
    assert asked_by(given).sampling.temperature == temperature


def test_other_parameters_are_taken_and_unknown_ones_told():
    asked = asked_by(
        {"top_p": 0.9, "top_k": -1, "min_p": 0.1, "num_beams": 1, "stop": None, "return_x": True}
    )
    assert (asked.sampling.top_p, asked.sampling.top_k, asked.sampling.min_p) == (0.9, 0, 0.1)
    assert asked.unknown == ("num_beams", "return_x")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"temperature": "hot"}, "temperature is 'hot': it must be a number"),
        ({"temperature": -1}, "temperature is -1.0: it must be a number from 0"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0: it must be a whole number from 1"),
        ({"max_gen_toks": 1.5}, "max_gen_toks is 1.5: it must be a whole number"),
        ({"until": [1]}, r"until is \[1\]: it must be a string or a list of strings"),
        ({"do_sample": "maybe"}, "do_sample is 'maybe': it must be true or false"),
        ({"top_p": 0}, "top_p is 0.0: it must be"),
        ({"top_k": "inf"}, "top_k is 'inf': it must be a whole number"),
    ],
)
def test_bad_generation_arguments_are_one_line(given, line):
    with pytest.raises(RequestError, match=f"^{line}"):
        asked_by(given)


def test_seeds_differ_by_prompt_repeat_and_seed_and_by_nothing_else():
    seeds = [seed_of(seed, context, repeat) for seed in (0, 1) for context in "ab" for repeat in (0, 1)]
    assert len(set(seeds)) == 8
    assert seed_of(1, "b", 1) == seeds[-1]


# The model's arguments


def test_arguments_are_read_as_lm_eval_parses_them():
    given = arguments_from({"checkpoint": "x", "effort": "high", "max_gen_toks": 8, "slots": 4, "seed": -3})
    assert (given.checkpoint, given.effort, given.max_gen_toks, given.seed) == ("x", "high", 8, -3)
    assert given.engine == {"slots": 4}
    assert arguments_from({"date": "2026-01-02"}).date == "2026-01-02"


@pytest.mark.parametrize(
    ("batch_size", "slots"), [(None, None), (1, None), ("auto:4", None), ("64", 64), (8, 8)]
)
def test_a_batch_size_is_the_engines_slots(batch_size, slots):
    assert arguments_from({}, batch_size).engine.get("slots") == slots
    assert arguments_from({"slots": 5}, batch_size).engine["slots"] == 5


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"pretrained": "x"}, "'pretrained' is no argument of gptoss-jax: .*; did you mean checkpoint[?]$"),
        ({"efort": "low"}, ".*; did you mean effort[?]$"),
        ({"effort": "extreme"}, "effort is 'extreme': it must be low or medium or high$"),
        ({"max_tokens": 0}, "max_tokens is 0: it must be a whole number from 1$"),
        ({"max_gen_toks": 2.5}, "max_gen_toks is 2.5: it must be a whole number from 1$"),
        ({"date": "today"}, "date is 'today': it must be a date, YYYY-MM-DD$"),
        ({"log_reasoning": True}, "log_reasoning is True: it must be a text$"),
    ],
)
def test_bad_arguments_are_one_line(arguments, line):
    with pytest.raises(RequestError, match=f"^{line}"):
        arguments_from(arguments)


def test_a_log_that_cannot_be_written_is_told_before_the_model_loads(tmp_path):
    with pytest.raises(RequestError, match=r"^log_reasoning: .*/none/log cannot be written: No such file"):
        arguments_from({"log_reasoning": str(tmp_path / "none" / "log")})
    (tmp_path / "log").write_text("kept\n")
    assert arguments_from({"log_reasoning": str(tmp_path / "log")}).log_reasoning == tmp_path / "log"
    assert (tmp_path / "log").read_text() == "kept\n"


def test_a_bad_batch_size_is_one_line():
    with pytest.raises(RequestError, match=r"^batch_size is '0': it must be a whole number from 1, or auto$"):
        arguments_from({}, "0")


def test_the_figures_say_what_was_cut():
    tally = Tally(answers=4, tokens=400, reasoning_tokens=300, cut_answers=1, cut_reasoning=2, empty=1)
    assert str(tally) == (
        "4 answers of 100 tokens on average, 75% of them reasoning; 1 cut by max_gen_toks or max_tokens; "
        "2 cut while still reasoning; 1 empty, by the model itself or by an `until` at their beginning"
    )
