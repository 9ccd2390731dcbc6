"""The engine on a small random model: what it generates, when it stops, and what may not matter."""

import fractions
import logging
import re
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest

from gptoss_jax.engine import (
    ChannelLimit,
    EngineOptions,
    Request,
    RequestError,
    RequestFailed,
    SamplingParams,
)
from gptoss_jax.engine.options import options_from
from gptoss_jax.engine.output_processor import OutputProcessor
from harmony.errors import shown
from tests.engine.engine_model import (
    FEW_PAGES,
    GREEDY,
    STOP,
    generate_by_plain_model,
    make_engine,
    make_requests,
    run,
    small_model,
    tokens_of,
)


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def engine():
    return make_engine()


def test_greedy_generation_is_the_plain_models_for_prompts_around_chunk_and_window(engine):
    generator = np.random.default_rng(5)
    lengths = [1, 7, 8, 9, 15, 16, 17, 33]
    requests = [Request(str(n), generator.integers(4, 50, size=n).tolist(), GREEDY) for n in lengths]
    completions = run(engine, requests)
    for request in requests:
        expected = generate_by_plain_model(request.prompt, GREEDY.max_tokens)
        assert completions[request.id].tokens == expected


def test_requests_without_a_seed_draw_by_their_id(engine):
    sampling = SamplingParams(max_tokens=20)
    same_prompt = [Request(name, [5, 6, 7], sampling) for name in ("a", "b")]
    first, second = run(engine, same_prompt), run(engine, same_prompt)
    assert first == second
    assert first["a"].tokens != first["b"].tokens


def test_the_64_bits_of_a_seed_all_count(engine):
    prompt = [5, 6, 7]
    outputs = [
        tuple(run(engine, [Request("x", prompt, SamplingParams(seed=seed, max_tokens=20))])["x"].tokens)
        for seed in (1, 2, 1 + 2**32, -1)
    ]
    assert len(set(outputs)) == 4


def test_a_stop_token_ends_a_completion_and_is_its_last_token(model, engine):
    completions = run(engine, make_requests(40, SamplingParams(seed=3)))
    stopped = [completion for completion in completions.values() if completion.finish_reason == "stop"]
    assert stopped
    assert all(c.tokens[-1] == STOP and STOP not in c.tokens[:-1] for c in stopped)


def test_length_ends_a_completion_at_max_tokens_or_the_longest_sequence(engine):
    engine_without_stop = make_engine(())
    request = Request("a", [4, 5, 6] * 18, SamplingParams(temperature=0.0))
    completion = run(engine_without_stop, [request])["a"]
    assert (len(completion.tokens), completion.finish_reason) == (10, "length")
    one = Request("one", [5], SamplingParams(max_tokens=1, seed=2))
    assert len(run(engine, [one])["one"].tokens) == 1


def test_more_requests_than_slots_all_finish_and_are_drawn_lazily(engine):
    drawn = []

    def source():
        for request in make_requests(60, SamplingParams(seed=1, max_tokens=10)):
            drawn.append(request.id)
            yield request

    completions = engine.run(source())
    next(completions)
    assert len(drawn) < 60
    assert len(list(completions)) == 59


def test_an_abandoned_run_leaves_the_engine_clean(model, engine):
    requests = make_requests(10, GREEDY, seed=8)
    expected = tokens_of(run(engine, requests))
    abandoned = engine.run(make_requests(10, SamplingParams(seed=1), seed=9))
    next(abandoned)
    abandoned.close()
    assert tokens_of(run(engine, requests)) == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 64, "the prompt has 64 tokens: it must leave room in the longest sequence, 64 tokens"),
        ([1, 50], "the prompt holds token 50: ids must be from 0 to 49"),
        ([-1], "the prompt holds token -1"),
    ],
)
def test_a_prompt_that_can_never_run_is_refused(engine, prompt, message):
    with pytest.raises(RequestError, match=message):
        engine.check(Request("x", prompt))


HUGE = 10**5000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", value) for value in (-0.1, float("nan"), "hot", None, True, 2**2000, HUGE, [1])],
        *[("top_p", value) for value in (0, 1.01, "1", np.float32("nan"))],
        *[("top_k", value) for value in (-1, 2.5, 2**31, np.bool_(True), HUGE)],
        *[("min_p", value) for value in (-1, 2, {})],
        *[("repetition_penalty", value) for value in (0, float("inf"), None)],
        *[("presence_penalty", value) for value in (float("-inf"), "0")],
        *[("frequency_penalty", value) for value in (None, 1j)],
        *[("seed", value) for value in (1.5, True, "1", [])],
        *[("n", value) for value in (0, 129, 10**9, None, 1.0)],
        *[("max_tokens", value) for value in (0, True, 1.5, "9")],
        *[("min_tokens", value) for value in (-1, None, False)],
        *[("stop", value) for value in (5, b"x", {"a": 1}, ["x"] * 17, True)],
        *[("stop_token_ids", value) for value in (5, "12", [1] * 17, {1: 2})],
        *[("logit_bias", value) for value in (5, [(1, 2)], {n: 1 for n in range(301)})],
        *[("logprobs", value) for value in (21, -1, True)],
        *[("reasoning_budget", value) for value in (0, 1.5, {})],
        *[("channel_limits", value) for value in (5, ["analysis"], "analysis")],
        *[("grammar", value) for value in ("abc", {"type": "object"}, 5, False)],
    ],
    ids=shown,
)
def test_a_sampling_value_that_cannot_be_is_named_with_what_is_allowed(field, value):
    with pytest.raises(RequestError, match=rf"\A{field} is [^\n]*: it must be [^\n]+\Z"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", ["a", ""], "stop holds ''"),
        ("stop", ["a", 5], "stop holds 5"),
        ("stop", ["x" * 4097], "stop holds 'xxx"),
        ("stop", "\ud800", "without lone surrogates"),
        ("stop_token_ids", [True], "stop_token_ids holds token True"),
        ("stop_token_ids", [2**31], "stop_token_ids holds token 2147483648"),
        ("logit_bias", {"5": 1}, "logit_bias has the key '5'"),
        ("logit_bias", {True: 1}, "logit_bias has the key True"),
        ("logit_bias", {5: float("nan")}, r"logit_bias\[5\] is nan"),
        ("channel_limits", {"analysis": 5}, r"channel_limits\['analysis'\] is 5: it must be a ChannelLimit"),
        ("channel_limits", {5: ChannelLimit()}, "channel_limits names 5: it must be one of analysis"),
    ],
)
def test_what_is_wrong_within_a_container_is_named(field, value, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**{field: value})


def test_none_is_an_empty_container():
    none = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None, channel_limits=None)
    assert none == SamplingParams()


def test_numbers_of_other_types_are_taken_and_containers_copied():
    ids, biases = np.array([3, 4]), {np.int64(5): np.float32(0.5), 6: 1}
    sampling = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int32(3), top_p=fractions.Fraction(1, 2), n=np.uint8(2),
        seed=jax.numpy.int32(7), stop="x", stop_token_ids=ids, logit_bias=biases,
    )  # fmt: skip
    biases[7] = 1
    assert sampling == SamplingParams(
        temperature=0.5, top_k=3, top_p=0.5, n=2, seed=7, stop=["x"], stop_token_ids=(3, 4),
        logit_bias={5: 0.5, 6: 1.0},
    )  # fmt: skip
    fields = (
        sampling.temperature,
        sampling.top_k,
        sampling.seed,
        *sampling.stop_token_ids,
        *sampling.logit_bias,
    )
    assert {type(value) for value in fields} == {int, float}


@pytest.mark.parametrize("prompt", [np.arange(3), (0, 1, 2), jax.numpy.arange(3), [np.int8(0), 1, 2]])
def test_a_prompt_of_any_integer_type_becomes_a_list_of_ints(prompt):
    request = Request("x", prompt)
    assert request.prompt == [0, 1, 2] and {type(token) for token in request.prompt} == {int}


@pytest.mark.parametrize(
    "prompt", [None, "abc", b"abc", 5, {1: 2}, {1, 2}, [1.0], [None], ["a"], [True], np.eye(2)]
)
def test_what_is_no_prompt_is_refused(prompt):
    with pytest.raises(RequestError, match=r"^the prompt (is|holds token) "):
        Request("x", prompt)


def test_a_request_is_checked_too():
    with pytest.raises(RequestError, match="id is 5: it must be a string"):
        Request(5, [1])
    with pytest.raises(RequestError, match="sampling is 'greedy': it must be a SamplingParams"):
        Request("x", [1], "greedy")
    assert Request("x", [1], None).sampling == SamplingParams()


@pytest.mark.parametrize(
    "limit", [{"min": -1}, {"max": 0}, {"min": 5, "max": 4}, {"max": True}, {"min": None}]
)
def test_a_channel_limit_that_cannot_be_is_refused(limit):
    with pytest.raises(RequestError, match=r"^(min|max) is .*: it must be a whole number from"):
        ChannelLimit(**limit)


def test_a_seed_of_any_size_draws(engine):
    for seed in (HUGE, -HUGE, 2**64, -(2**63) - 1):
        completions = list(engine.run([Request("x", [5, 6], SamplingParams(seed=seed, n=2, max_tokens=3))]))
        assert len(completions) == 2 and all(completion.tokens for completion in completions)


def test_numbers_beyond_the_devices_range_are_answered(engine):
    extreme = SamplingParams(
        temperature=1e300, repetition_penalty=1e-300, presence_penalty=-1e300, frequency_penalty=1e300,
        logit_bias={5: 1e300, 6: -1e300}, min_tokens=HUGE, max_tokens=HUGE, seed=1,
        channel_limits={}, stop_token_ids=range(20, 36),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        completion = run(engine, [Request("x", [5, 6, 7], extreme)])["x"]
    assert len(completion.tokens) == 61 and completion.finish_reason == "length"


def test_an_option_that_is_none_is_named_with_the_nearest():
    with pytest.raises(RequestError, match=r"^'slotz' is no option of the engine: .*; did you mean slots\?$"):
        make_engine(slotz=4)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("slots", value) for value in (None, True, 1.5, "4", HUGE, 2**31, float("nan"))],
        *[("snapshots", value) for value in (-1, None)],
        *[("pages", value) for value in (0, [], True)],
        *[("memory", value) for value in (0, "1")],
        *[("kv_dtype", value) for value in (5, [], "int3", np.int8, {})],
    ],
    ids=shown,
)
def test_an_option_of_a_wrong_type_is_refused_in_one_line(option, value):
    with pytest.raises(RequestError, match=rf"\A{option} is [^\n]*: it must be [^\n]+\Z"):
        EngineOptions(**{option: value})


def test_options_may_be_numpys_numbers_and_dtypes():
    options = EngineOptions(slots=np.int64(4), kv_dtype=jax.numpy.bfloat16)
    assert (type(options.slots), options.kv_dtype) == (int, "bfloat16")


@pytest.mark.parametrize("error", [ZeroDivisionError("once"), BaseException("panic")])
def test_a_sequence_whose_control_fails_ends_alone(engine, monkeypatch, error):
    requests = make_requests(6, GREEDY, seed=4)
    expected = run(engine, requests)
    process = OutputProcessor.process

    def fail(self, tokens):
        if self.request.id == "r3":
            raise error
        return process(self, tokens)

    monkeypatch.setattr(OutputProcessor, "process", fail)
    completions = run(engine, requests)
    bad = completions.pop("r3")
    assert (bad.finish_reason, bad.tokens) == ("cancelled", [])
    assert re.search(r"^the engine failed while it followed the completion: \w+: (once|panic)$", bad.error)
    alone = tokens_of(expected)
    assert tokens_of(completions) == {name: tokens for name, tokens in alone.items() if name != "r3"}
    monkeypatch.undo()
    assert tokens_of(run(engine, requests)) == alone


def test_a_request_on_which_the_engine_fails_is_not_taken(engine, monkeypatch):
    def fail(self, *arguments, **options):
        raise KeyError("lost")

    monkeypatch.setattr(OutputProcessor, "__init__", fail)
    for look in (engine.check, engine.add):
        with pytest.raises(RequestFailed, match="the engine cannot take the request: KeyError: 'lost'"):
            look(Request("x", [5]))
    with pytest.raises(RequestError, match="the request is 'x': it must be a Request"):
        engine.check("x")
    assert engine.unfinished == 0


def test_an_option_that_is_none_keeps_its_default():
    assert options_from({"slots": None, "page_size": 32}) == EngineOptions(page_size=32)
    assert options_from({"slots": None}, EngineOptions(slots=4)).slots == 4


@pytest.mark.slow
def test_the_log_tells_of_the_plan_compilations_and_preemptions(caplog):
    jax.clear_caches()  # another test may have compiled the same program in this process
    with caplog.at_level(logging.DEBUG, "gptoss_jax"):
        engine = make_engine((), **FEW_PAGES)
        long = SamplingParams(temperature=0, max_tokens=50)
        run(engine, [Request(str(number), [5 + number], long) for number in range(4)])
    told = caplog.text
    assert "plan: Each device holds" in told and "8 slots" in told
    assert told.count("compiled decode") == 1
    assert told.count("preempted sample 0 of request") == engine.statistics.preemptions > 0


def test_nothing_is_logged_unless_asked_for():
    program = (
        "import logging, gptoss_jax\n"
        "logging.getLogger('gptoss_jax.engine').warning('a warning')\n"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
