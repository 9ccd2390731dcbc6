"""Whole completions under a grammar: what may come, what may not, and where it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jsonschema
import llguidance
import numpy as np
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.grammar import Grammar, GrammarCompiler, GrammarError
from gptoss_jax.vocabulary import load_encoding_for
from harmony import Role, load_harmony_encoding, parse_completion
from tests.engine.grammar_schemas import RandomModel, SchemaMaker, allowed, validate

TINY = load_encoding_for(open_checkpoint("tiny"))
ROWS = TINY.size + 65
COMPILER = GrammarCompiler(TINY, ROWS)
ORDINARY = len(TINY.ordinary_tokens)

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "label": {"enum": ["a", "b"]}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = {"look": POINT, "look_up": {"type": "object", "properties": {"q": {"type": "string"}}}, "stop": None}
FINAL = "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"


def encode(text, encoding=TINY):
    return encoding.encode(text, allowed_special="all")


def at(grammar, text="", *, reasoning=True, compiler=COMPILER, encoding=TINY):
    """A matcher after the text, all of which it must take."""
    matcher = compiler.compile(grammar, reasoning=reasoning)
    tokens = encode(text, encoding)
    assert matcher.accept(tokens) == len(tokens), encoding.decode(tokens[: matcher.accept(tokens)])
    return matcher


def takes(grammar, text, **options):
    tokens = encode(text)
    return COMPILER.compile(grammar, **options).accept(tokens) == len(tokens)


GRAMMARS = {
    "schema": Grammar.json_schema(POINT),
    "object": Grammar.json_object(),
    "regex": Grammar.regex("[a-f]{2}(-[0-9]{1,3}|é)*"),
    "lark": Grammar.lark('start: sum\nsum: NUMBER | sum "+" sum | "(" sum ")"\nNUMBER: /[0-9]{1,3}/'),
    "calls": Grammar.calls(TOOLS),
    "answer or call": Grammar.json_schema(POINT).with_calls(TOOLS),
    "text or call": Grammar.calls(TOOLS, "auto"),
}


# Masks


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_mask_is_exactly_the_tokens_that_would_be_accepted_at_random_points(name):
    rng, model = np.random.default_rng(len(name)), RandomModel(TINY, ROWS)
    points = 0
    while points < 15:
        matcher = COMPILER.compile(GRAMMARS[name])
        for _ in range(60):
            if rng.random() < 0.12:
                one_by_one = [token for token in range(-1, ROWS + 40) if matcher.copy().accept([token])]
                assert allowed(matcher.mask()).tolist() == one_by_one
                points += 1
            if matcher.finished:
                break
            assert matcher.accept([model.draw(matcher.mask(), rng)]) == 1
    assert matcher.mask().shape == ((ROWS + 31) // 32,) and matcher.mask().dtype == np.uint32


# What a document may be


def test_a_regex_is_met_by_the_whole_text():
    pattern = "[a-f]{2}(-[0-9]{1,3}|é)*"
    rng, model = np.random.default_rng(1), RandomModel(TINY, ROWS)
    for _ in range(30):
        matcher = at(Grammar.regex(pattern), FINAL)
        tokens = model.complete(matcher, rng)
        assert matcher.finished and re.fullmatch(pattern, TINY.decode(tokens[:-1]))


def test_a_lark_grammar_is_met_by_the_whole_text():
    rng, model = np.random.default_rng(2), RandomModel(TINY, ROWS)
    finished = 0
    for _ in range(30):
        matcher = at(GRAMMARS["lark"], FINAL)
        text = TINY.decode(model.complete(matcher, rng, most=80))
        if matcher.finished:
            finished += 1
            # Leading zeros are no Python.
            assert isinstance(eval(re.sub(r"\b0+(?=[0-9])", "", text.removesuffix("<|return|>"))), int)
    assert finished >= 20


def test_any_json_object_is_an_object_and_nothing_else():
    rng, model = np.random.default_rng(3), RandomModel(TINY, ROWS)
    finished = 0
    for _ in range(40):
        matcher = at(Grammar.json_object(), FINAL)
        tokens = model.complete(matcher, rng, most=300)
        if matcher.finished:
            finished += 1
            assert isinstance(json.loads(TINY.decode(tokens[:-1])), dict)
    assert finished >= 30


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"x":1}', True),
        ('{ "x" : 1 , "label" : "a" }', True),
        ('{"x":  1}', False),
        ('{\n"x":1}', False),
        (' {"x":1}', False),
        ('{"x":1} ', False),
        ('{"x":1}{}', False),
        ('{"x":100}', False),
        ('{"label":"a"}', False),
        ('{"x":1,"y":2}', False),
    ],
)
def test_a_document_is_exact_with_at_most_one_space_where_json_has_white_space(text, valid):
    assert takes(Grammar.json_schema(POINT), f"{FINAL}{text}<|return|>") is valid


def test_the_final_message_may_say_that_it_is_json():
    for between in ("", "<|constrain|>json", " <|constrain|>json"):
        assert takes(Grammar.json_schema(POINT), f'<|channel|>final{between}<|message|>{{"x":1}}<|return|>')


def test_text_that_looks_like_a_special_token_stays_text():
    matcher = at(Grammar.json_object(), FINAL)
    assert matcher.force(TINY.encode_ordinary('{"a":"<|return|><|end|>"}'))
    assert not matcher.finished and matcher.complete
    inside = at(Grammar.json_object(), FINAL + '{"a":"')
    special = [token for token in range(TINY.size) if TINY.is_special_token(token)]
    assert all(inside.accept([token]) == 0 for token in special)


def test_a_run_of_digits_comes_to_an_end_that_python_can_read():
    matcher = at(Grammar.json_object(), FINAL + '{"a":')
    one = TINY.encode_ordinary("1")
    count = matcher.accept(one * 6000)
    assert 900 < count < 1100
    assert not {TINY.token_bytes(token)[:1] for token in allowed(matcher.mask())} & set(b"0123456789")
    assert matcher.force(encode("}<|return|>")) and matcher.complete
    json.loads('{"a":' + "1" * count + "}")


# Known holes of llguidance that the schema is changed for


@pytest.mark.parametrize(
    "text", [r'{"x":1,"\u0078":"no integer"}', '{"x":1,"x":"no integer"}', r'{"x":1,"l\u0061bel":5}']
)
def test_an_open_key_cannot_be_a_known_one_in_disguise(text):
    schema = {**POINT, "additionalProperties": True}
    assert not takes(Grammar.json_schema(schema), FINAL + text)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("2024-02-29", True),
        ("2023-02-29", False),
        ("2000-02-29", True),
        ("1900-02-29", False),
        ("2023-02-28", True),
        ("2023-04-31", False),
        ("2023-12-31", True),
        ("0000-01-01", False),
    ],
)
@pytest.mark.parametrize(("format", "end"), [("date", ""), ("date-time", "T12:00:00Z")])
def test_a_date_is_a_day_that_was(text, valid, format, end):
    grammar = Grammar.json_schema({"type": "string", "format": format})
    assert takes(grammar, f'{FINAL}"{text}{end}"') is valid


def test_bounds_beyond_exact_floats_are_moved_in():
    grammar = Grammar.json_schema({"type": "integer", "minimum": 0, "maximum": 2**63 - 1})
    assert takes(grammar, FINAL + str(2**53) + "<|return|>")
    assert not takes(grammar, FINAL + str(2**63) + "<|return|>")


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (1, "0.99999999999999999999"),
        (1, "0.999999999"),
        (1, "-3.5"),
        (0.1, "0.0999999999999999999999"),
        (1e6, "999999.99999999999999"),
        (123456789.5, "123456789.49999999999"),
        (123456789.5, "123456789.4"),
        (2**53, "9007199254740991.9"),
        (2**53, "9007199254740991"),
    ],
)
def test_no_number_is_read_as_the_bound_that_it_must_not_reach(bound, text):
    below = Grammar.json_schema({"type": "number", "exclusiveMaximum": bound})
    assert takes(below, f"{FINAL}{text}<|return|>") is (float(text) < bound)
    above = Grammar.json_schema({"type": "number", "exclusiveMinimum": -bound})
    mirrored = text.removeprefix("-") if text.startswith("-") else f"-{text}"
    assert takes(above, f"{FINAL}{mirrored}<|return|>") is (float(mirrored) > -bound)


def test_guidance_within_a_schema_is_not_listened_to():
    schema = {**POINT, "x-guidance": {"lenient": True, "whitespace_flexible": True}}
    assert not takes(Grammar.json_schema(schema), FINAL + '{  "x":1}')


# Calls


def parsed(tokens):
    return parse_completion(TINY, tokens, role=Role.ASSISTANT)


@pytest.mark.parametrize("choice", ["auto", "required", "look", "none"])
def test_completions_answer_or_call_as_the_choice_says(choice):
    grammar = Grammar.json_schema(POINT).with_calls(TOOLS, choice)
    rng, model = np.random.default_rng(4), RandomModel(TINY, ROWS)
    called: set[str] = set()
    for _ in range(100):
        matcher = COMPILER.compile(grammar)
        tokens = model.complete(matcher, rng, most=300)
        if not matcher.finished:
            continue
        result = parsed(tokens)
        assert result.complete and not result.diagnostics
        *before, last = result.messages
        assert all(message.channel in ("analysis", "commentary") for message in before)
        assert all(message.recipient is None for message in before)
        document = json.loads(last.content[0].text)
        name = "" if last.recipient is None else last.recipient.removeprefix("functions.")
        schema = TOOLS[name] if name else POINT
        jsonschema.validate(document, schema or {"type": "object"})
        assert last.channel == ("commentary" if name else "final")
        assert tokens[-1] == (TINY.call if name else TINY.return_)
        called.add(name)
    expected = {"auto": {"", *TOOLS}, "required": {*TOOLS}, "look": {"look"}, "none": {""}}
    assert called == expected[choice]


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.look<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.look<|message|>",
        " to=functions.look<|channel|>commentary <|constrain|>json<|message|>",
    ],
)
@pytest.mark.parametrize("before", ["", f"{ANALYSIS}hm<|end|><|start|>assistant"])
def test_a_call_may_have_its_recipient_in_either_place(header, before):
    assert takes(GRAMMARS["calls"], before + header + '{"x":3}<|call|>')


def test_a_call_ends_as_a_call_and_an_answer_as_an_answer():
    either = GRAMMARS["answer or call"]
    call = '<|channel|>commentary to=functions.look<|message|>{"x":3}'
    assert takes(either, call + "<|call|>") and not takes(either, call + "<|return|>")
    assert takes(either, FINAL + '{"x":3}<|return|>') and not takes(either, FINAL + '{"x":3}<|call|>')


def test_an_unknown_function_cannot_be_called():
    for name in ("lo", "looks", "look_u", "", "other"):
        header = f"<|channel|>commentary to=functions.{name}<|message|>"
        assert not takes(GRAMMARS["calls"], header)


def test_preambles_come_only_where_there_are_functions():
    preamble = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
    assert takes(GRAMMARS["calls"], preamble)
    assert not takes(GRAMMARS["schema"], preamble)


def test_a_free_answer_beside_calls_is_any_text_to_its_end():
    matcher = at(GRAMMARS["text or call"], FINAL + "Well, <")
    assert not matcher.complete
    assert matcher.accept([TINY.end]) == 0 and matcher.accept([TINY.call]) == 0
    assert matcher.accept([TINY.return_]) == 1 and matcher.complete


# Free text


@pytest.mark.parametrize("header", [ANALYSIS, "<|channel|>commentary<|message|>"])
def test_reasoning_is_any_tokens_of_text_and_no_special_one(header):
    matcher = at(GRAMMARS["calls"], header)
    free = [*range(ORDINARY), TINY.end]
    for text in ("", "some words", '{"x":', "</|"):
        assert matcher.force(TINY.encode_ordinary(text))
        assert allowed(matcher.mask()).tolist() == free
    for token in range(ORDINARY):  # among them bytes that are no text by themselves
        assert matcher.accept([token]) == 1
    assert all(matcher.accept([token]) == 0 for token in range(ORDINARY, ROWS) if token != TINY.end)
    assert matcher.accept([TINY.end]) == 1


def test_without_reasoning_no_analysis_comes():
    assert takes(GRAMMARS["schema"], ANALYSIS)
    assert not takes(GRAMMARS["schema"], ANALYSIS, reasoning=False)


# Accepting and forcing


def test_accept_returns_how_many_could_come_and_stays_there():
    matcher = at(GRAMMARS["schema"], FINAL)
    good, bad = encode('{"x":1'), encode("7]")
    assert matcher.accept([*good, *bad]) == len(good) + len(encode("7"))
    assert matcher.force(encode("}<|return|>"))


def test_after_the_stop_token_nothing_comes():
    matcher = at(GRAMMARS["schema"], FINAL + '{"x":1}<|return|>')
    assert matcher.finished and matcher.complete
    assert not matcher.mask().any()
    assert matcher.accept([TINY.return_]) == 0 and matcher.force([])


def test_force_takes_all_or_nothing():
    matcher = at(GRAMMARS["schema"], ANALYSIS + "so")
    assert not matcher.force(encode("<|end|><|start|>assistant<|channel|>final<|message|>no"))
    assert allowed(matcher.mask()).tolist() == [*range(ORDINARY), TINY.end]
    assert matcher.force(encode("<|end|><|start|>assistant<|channel|>final<|message|>"))
    assert matcher.force(encode('{"x":1}<|return|>'))


def test_a_copy_goes_its_own_way():
    matcher = at(GRAMMARS["schema"], FINAL + '{"x":')
    other = matcher.copy()
    assert other.force(encode("1}<|return|>")) and other.complete
    assert not matcher.complete and matcher.force(encode("2}"))


def test_a_document_that_was_cut_is_not_complete():
    text = FINAL + '{"x":12}'
    matcher = COMPILER.compile(GRAMMARS["schema"])
    for token in encode(text):
        assert not matcher.complete
        assert matcher.accept([token]) == 1
    assert matcher.complete and not matcher.finished
    assert not at(Grammar.json_schema({"type": "integer"}), FINAL + "12").complete


@pytest.mark.parametrize("name", GRAMMARS)
def test_reasoning_can_be_closed_anywhere(name):
    grammar, rng = GRAMMARS[name], np.random.default_rng(5)
    message = f"{ANALYSIS}I think, so…<|end|><|start|>assistant"
    closed = 0
    for text in [*encode(message)], [*encode(message + message)]:
        for cut in range(len(text) + 1):
            matcher = COMPILER.compile(grammar)
            assert matcher.accept(text[:cut]) == cut
            closing = matcher.close_reasoning()
            assert closing is not None and matcher.force(closing)
            closed += 1
            whole = TINY.decode([*text[:cut], *closing])
            must_call = name == "calls"
            assert whole.endswith("<|channel|>commentary to=functions" if must_call else FINAL)
            if name != "text or call":  # there the final message is free text
                assert matcher.close_reasoning() is None or must_call
            model = RandomModel(TINY, ROWS)
            if cut % 7 == 0 and model.complete(matcher, rng) and matcher.finished:
                assert matcher.complete
    assert closed > 20


def test_reasoning_closes_with_the_fewest_tokens():
    end = "<|end|><|start|>assistant"
    for before, closing in {
        "": FINAL,
        "<|channel|>": "final<|message|>",
        "<|channel|>analysis": f"<|message|>{end}{FINAL}",
        f"{ANALYSIS}hm": end + FINAL,
        f"{ANALYSIS}hm<|end|>": f"<|start|>assistant{FINAL}",
        f"{ANALYSIS}hm<|end|><|start|>": f"assistant{FINAL}",
    }.items():
        assert TINY.decode(at(GRAMMARS["schema"], before).close_reasoning()) == closing


def test_one_function_that_must_be_called_is_named_when_reasoning_closes():
    matcher = at(Grammar.calls({"look": POINT}), ANALYSIS + "hm")
    header = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
    assert TINY.decode(matcher.close_reasoning()) == "<|end|><|start|>assistant" + header


def test_within_the_document_there_is_no_reasoning_to_close():
    assert at(GRAMMARS["schema"], FINAL + '{"x"').close_reasoning() is None
    assert at(GRAMMARS["calls"], " to=functions.look<|channel|>").close_reasoning() is None


# The other vocabulary


@pytest.mark.parametrize("rows", [201_088, 201_216])
def test_the_vocabulary_of_gpt_oss_with_its_rows_and_with_more(rows):
    encoding = load_harmony_encoding()
    compiler = GrammarCompiler(encoding, rows)
    options = {"compiler": compiler, "encoding": encoding}
    matcher = at(
        Grammar.json_schema(POINT), ANALYSIS + "Zoë 思考<|end|><|start|>assistant" + FINAL, **options
    )
    assert matcher.mask().shape == (-(-rows // 32),)
    texts = {encoding.token_bytes(int(token)) for token in allowed(matcher.mask())}
    assert b'{"' in texts and texts <= {b"{", b"{ ", b'{"', b'{ "', b'{"x', b'{"label'}
    string = at(Grammar.json_object(), FINAL + '{"a":"', **options)
    may_come = allowed(string.mask())
    assert len(may_come) > 190_000 and may_come.max() < len(encoding.ordinary_tokens)
    free = at(Grammar.json_object(), ANALYSIS, **options)
    assert allowed(free.mask()).tolist() == [*range(199_998), encoding.end]
    assert free.accept([200_018]) == free.accept([rows - 1]) == free.accept([rows]) == 0


def test_documents_over_the_vocabulary_of_gpt_oss_are_valid():
    encoding = load_harmony_encoding()
    compiler = GrammarCompiler(encoding, 201_088)
    rng, model = np.random.default_rng(6), RandomModel(encoding, 201_088)
    finished = 0
    for seed in range(8):
        schema = SchemaMaker(seed).object(2)
        document = at(Grammar.json_schema(schema), FINAL, compiler=compiler, encoding=encoding)
        tokens = model.complete(document, rng, most=120)
        if document.finished:
            finished += 1
            validate(encoding.decode(tokens[:-1]), schema)
    assert finished >= 4


def test_a_model_with_too_few_rows_for_its_stop_tokens_is_refused():
    with pytest.raises(GrammarError, match="vocabulary_size is 100"):
        GrammarCompiler(TINY, 100)


# What goes wrong


def test_a_grammar_that_grows_too_complex_while_it_is_followed_says_so(monkeypatch):
    limits = llguidance.LLParserLimits
    monkeypatch.setattr(llguidance, "LLParserLimits", lambda **options: limits(**options, step_max_items=100))
    compiler = GrammarCompiler(TINY, ROWS)
    matcher = at(Grammar.lark('start: x\nx: x x x | x x | "a"'), FINAL, compiler=compiler)
    with pytest.raises(GrammarError, match=r"cannot be followed: .*[Tt]oo many") as caught:
        for _ in range(100):
            assert matcher.accept(TINY.encode_ordinary("a")) == 1
            matcher.mask()
    assert "\n" not in str(caught.value)
    with pytest.raises(GrammarError):
        matcher.mask()


def test_importing_grammars_needs_no_llguidance():
    code = "import sys, gptoss_jax.engine.grammar as g; g.Grammar.json_object(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "llguidance" not in done.stdout.split()
