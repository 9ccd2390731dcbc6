"""Every field of a request body of OpenAI's APIs, and of what vLLM and SGLang add to them.

A field is honoured, is without effect here, or is refused where it asks for something. `fields.py` holds
bodies against this table, and the tables of ``docs/batch.md`` are made from it. The names are those of the
`openai` package 3.54 (Chat Completions and Responses), and of the request types of vLLM and SGLang.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from harmony.openai_formats import BodyForm

Effect = Literal["honoured", "without effect", "refused"]
JsonType = Literal["boolean", "string", "number", "integer", "object", "array"]

BOTH: tuple[BodyForm, ...] = ("chat", "responses")
CHAT: tuple[BodyForm, ...] = ("chat",)
RESPONSES: tuple[BodyForm, ...] = ("responses",)


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields of which the same is to be said.

    names: dotted paths; ``[]`` stands for each item of an array.
    effect: what becomes of them.
    says: what they do; why they are without effect; or why they are refused.
    allowed: honoured fields: the values, in words.
    json_types: fields without effect: what they must be all the same; none for any value.
    neutral: refused fields: the values that ask for nothing. Null is always one.
    forms: the bodies that may have them.
    """

    names: tuple[str, ...]
    effect: Effect
    says: str
    allowed: str = ""
    json_types: tuple[JsonType, ...] = ()
    neutral: tuple[Any, ...] = ()
    forms: tuple[BodyForm, ...] = BOTH


def _honoured(names: str, allowed: str, does: str, forms: tuple[BodyForm, ...] = BOTH) -> Fields:
    return Fields(tuple(names.split()), "honoured", does, allowed=allowed, forms=forms)


def _without_effect(names: str, json_types: str, why: str, forms: tuple[BodyForm, ...] = BOTH) -> Fields:
    types: tuple[Any, ...] = tuple(json_types.split())
    return Fields(tuple(names.split()), "without effect", why, json_types=types, forms=forms)


def _refused(names: str, neutral: tuple[Any, ...], why: str, forms: tuple[BodyForm, ...] = BOTH) -> Fields:
    return Fields(tuple(names.split()), "refused", why, neutral=neutral, forms=forms)


HONOURED = (
    _honoured("messages", "an array of messages", "the conversation", CHAT),
    _honoured(
        "messages[].role messages[].content messages[].tool_call_id messages[].tool_calls "
        "messages[].reasoning messages[].reasoning_content messages[].refusal messages[].extra_content",
        "text, or parts of text; calls of functions and their results",
        "a message",
        CHAT,
    ),
    _honoured("input", "a string, or an array of items", "the conversation", RESPONSES),
    _honoured("instructions", "a string", "the developer's instructions", RESPONSES),
    _honoured("temperature", "0 … 2", "which tokens are drawn; 0 takes the likeliest every time"),
    _honoured("top_p min_p", "above 0 … 1; 0 … 1", "which tokens are drawn"),
    _honoured("top_k", "from 1; 0 and -1 for all", "which tokens are drawn"),
    _honoured("presence_penalty frequency_penalty", "-2 … 2", "against tokens that the completion has"),
    _honoured("repetition_penalty", "0.1 … 10", "against tokens of the prompt and the completion"),
    _honoured("logit_bias", "at most 300 token ids, as strings, with -100 … 100", "for or against tokens"),
    _honoured(
        "bad_words", "strings of one token each", "words that are never drawn, with or without a space before"
    ),
    _honoured("seed", "a whole number of 64 bits", "without one, it is made of the run's seed and the id"),
    _honoured("n", "1 … 128; in Responses 1", "samples of the same prompt"),
    _honoured(
        "max_tokens max_completion_tokens",
        "from 1",
        "the most tokens; more than fit are cut to what fits",
        CHAT,
    ),
    _honoured("max_output_tokens", "from 1", "as `max_tokens`", RESPONSES),
    _honoured("min_tokens", "from 0", "no stop token before so many tokens"),
    _honoured("ignore_eos", "true, false", "no stop token before the most tokens; for measurements"),
    _honoured(
        "stop",
        "a string, or at most 16",
        "the answer, or a preamble, ends before the first of them; reasoning and calls may contain them",
    ),
    _honoured("stop_token_ids", "at most 16 token ids", "tokens that end the completion, wherever they come"),
    _honoured("logprobs", "true, false", "log-probabilities of the answer; Responses have `include`"),
    _honoured("top_logprobs", "0 … 20", "so many of the likeliest tokens beside each"),
    _honoured(
        "include",
        '`"message.output_text.logprobs"`',
        "log-probabilities; the other values that OpenAI lists have nothing to add here",
        RESPONSES,
    ),
    _honoured(
        "reasoning_effort reasoning.effort chat_template_kwargs.reasoning_effort",
        "low, medium, high; none and minimal are low, xhigh and max are high",
        "how long the model reasons",
    ),
    _honoured(
        "reasoning.max_tokens thinking_token_budget",
        "from 1; `thinking_token_budget` also -1 for no limit",
        "tokens of analysis after which the model must answer",
    ),
    _honoured(
        "reasoning.exclude include_reasoning", "true, false", "whether the reasoning stays out of the answer"
    ),
    _honoured("reasoning.enabled", "true", "the model always reasons"),
    _honoured(
        "reasoning.context",
        "auto, current_turn, all_turns",
        "all_turns keeps the reasoning of all earlier turns in the prompt",
    ),
    _honoured("tools", "an array of functions", "what the model may call"),
    _honoured(
        "tools[].type tools[].function tools[].function.name tools[].function.description "
        "tools[].function.parameters",
        "as in Chat Completions",
        "a function",
        CHAT,
    ),
    _honoured(
        "tools[].type tools[].name tools[].description tools[].parameters",
        "as in Responses",
        "a function",
        RESPONSES,
    ),
    _honoured("tools[].function.strict", "true, false", "true: its arguments follow their schema", CHAT),
    _honoured("tools[].strict", "true, false", "true: its arguments follow their schema", RESPONSES),
    _honoured(
        "tool_choice",
        "none, auto, required, a function, allowed_tools",
        "required and a function enforce a call; allowed_tools leaves the other functions out",
    ),
    _honoured("tool_choice.type tool_choice.function tool_choice.allowed_tools", "", "as above", CHAT),
    _honoured(
        "tool_choice.type tool_choice.name tool_choice.mode tool_choice.tools", "", "as above", RESPONSES
    ),
    _honoured(
        "response_format",
        "text, json_object, json_schema",
        "json_object is enforced, a json_schema where it is strict",
        CHAT,
    ),
    _honoured(
        "response_format.type response_format.json_schema response_format.json_schema.name "
        "response_format.json_schema.schema response_format.json_schema.description "
        "response_format.json_schema.strict",
        "as in Chat Completions",
        "a schema that is not strict is shown to the model and not enforced",
        CHAT,
    ),
    _honoured("text text.format", "text, json_object, json_schema", "as `response_format`", RESPONSES),
    _honoured(
        "text.format.type text.format.name text.format.schema text.format.description text.format.strict",
        "as in Responses",
        "as `response_format`",
        RESPONSES,
    ),
    _honoured(
        "guided_json structured_outputs.json",
        "a JSON Schema, or its text",
        "as `response_format` of the type json_schema with `strict: true`",
    ),
    _honoured("structured_outputs.json_object", "true", "as `response_format` of the type json_object"),
    _honoured(
        "guided_regex regex structured_outputs.regex",
        "a regular expression in Rust's syntax",
        "the whole answer matches it",
    ),
    _honoured(
        "guided_choice structured_outputs.choice", "an array of strings", "the answer is exactly one of them"
    ),
    _honoured(
        "guided_grammar ebnf structured_outputs.grammar",
        "a grammar in Lark's or GBNF's syntax",
        "the answer follows it",
    ),
    _honoured(
        "structured_outputs reasoning chat_template_kwargs", "an object", "what its fields in this table say"
    ),
)

WITHOUT_EFFECT = (
    _without_effect("model", "string", "one checkpoint answers all requests"),
    _without_effect("stream", "boolean", "a row comes as a whole"),
    _without_effect("stream_options", "object", "a row comes as a whole"),
    _without_effect(
        "stream_options.include_usage stream_options.include_obfuscation "
        "stream_options.continuous_usage_stats stream_reasoning",
        "boolean",
        "a row comes as a whole",
    ),
    _without_effect("stream_interval", "integer", "a row comes as a whole"),
    _without_effect(
        "user safety_identifier prompt_cache_key prompt_cache_retention service_tier request_id",
        "string",
        "who asks, at what price and under what name changes no answer",
    ),
    _without_effect("rid session_id extra_key", "", "the name of a request changes no answer"),
    _without_effect("cache_salt", "string", "requests of one run may share what is computed"),
    _without_effect("prompt_cache_options access_programs", "object", "there is no such service here"),
    _without_effect("metadata", "object", "Responses repeat it"),
    _without_effect("store", "boolean", "nothing is kept but the output file"),
    _without_effect(
        "parallel_tool_calls", "boolean", "the model calls one function at a time; Responses repeat it"
    ),
    _without_effect("prediction", "object", "it makes a hosted model faster, and changes no answer"),
    _without_effect("ngram_corpus_id", "string", "it makes a server faster, and changes no answer"),
    _without_effect("priority", "integer", "rows are answered in an order that changes no answer"),
    _without_effect("custom_labels", "object", "a server's own statistics"),
    _without_effect("length_penalty", "number", "only beam search would use it, which is refused"),
    _without_effect("truncation_side", "string", "only truncation would use it, which is refused"),
    _without_effect(
        "background_options", "object", "only `background` would use it, which is refused", RESPONSES
    ),
    _without_effect(
        "spaces_between_special_tokens return_token_offsets return_mm_kwargs return_cached_tokens_details",
        "boolean",
        "there is nothing here that it would change",
    ),
    _without_effect("guided_decoding_backend", "string", "there is one backend"),
    _without_effect("structured_outputs.disable_fallback", "boolean", "there is one backend"),
    _without_effect("messages[].name", "string", "the format has no names of users", CHAT),
    _without_effect("messages[].annotations", "array", "notes about an answer, not part of it", CHAT),
    _without_effect(
        "reasoning.summary reasoning.generate_summary",
        "string",
        "a batch makes no summary, a server where it is told how: the reasoning itself is in the answer",
    ),
    _without_effect(
        "media_io_kwargs mm_processor_kwargs images_config image",
        "object",
        "no images, sounds or videos are taken",
    ),
    _without_effect(
        "max_dynamic_patch min_dynamic_patch", "integer", "no images, sounds or videos are taken"
    ),
    _without_effect("use_audio_in_video", "boolean", "no images, sounds or videos are taken"),
    _without_effect(
        "kv_transfer_params ec_transfer_params", "object", "where a server computes changes no answer"
    ),
    _without_effect(
        "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank "
        "data_parallel_rank",
        "",
        "where a server computes changes no answer",
    ),
    _without_effect(
        "routed_experts_prompt_start routed_experts_start_len", "integer", "no routes of experts are told"
    ),
)

REFUSED = (
    _refused("best_of", (1,), "ask for `n` samples"),
    _refused("use_beam_search", (False,), "tokens are drawn one after another"),
    _refused("audio", (), "answers are text"),
    _refused("modalities", (["text"],), "answers are text"),
    _refused("functions", ([],), "give `tools`"),
    _refused("function_call", ("none", "auto"), "give `tool_choice`"),
    _refused("messages[].function_call", (), "give `tool_calls`", CHAT),
    _refused("messages[].audio", (), "messages are text", CHAT),
    _refused("messages[].tools", ([],), "give them in the body's `tools`", CHAT),
    _refused("web_search_options", (), "nothing here searches the web"),
    _refused("moderation", (), "nothing here judges texts"),
    _refused("background", (False,), "a request is answered at once"),
    _refused(
        "conversation previous_response_id previous_response", (), "no conversation is kept: give all of it"
    ),
    _refused("previous_input_messages", ([],), "no conversation is kept: give all of it"),
    _refused("session_params", ({},), "no conversation is kept: give all of it"),
    _refused("prompt", (), "no prompts are stored"),
    _refused("context_management", ([],), "no context is made shorter"),
    _refused("truncation", ("disabled",), "no context is made shorter"),
    _refused("truncate_prompt_tokens", (), "no context is made shorter"),
    _refused("max_tool_calls", (), "no tools are run here, and calls of functions are not counted"),
    _refused("verbosity", ("medium",), "the model has no such setting: say it in the instructions", CHAT),
    _refused(
        "text.verbosity", ("medium",), "the model has no such setting: say it in the instructions", RESPONSES
    ),
    _refused("reasoning.mode", ("standard",), "the model has one way to reason"),
    _refused("separate_reasoning", (True,), "reasoning is never part of the answer's text"),
    _refused("watermarking", (False,), "tokens are drawn without a mark"),
    _refused("allowed_token_ids", (), "draws cannot be limited to a list of tokens: give a grammar"),
    _refused("logprob_token_ids", (), "give `top_logprobs`"),
    _refused("prompt_logprobs", (), "the prompt has no log-probabilities"),
    _refused("echo", (False,), "an answer does not repeat the prompt"),
    _refused("continue_final_message", (False,), "the model begins a message of its own"),
    _refused("add_generation_prompt", (True,), "the model always answers"),
    _refused("add_special_tokens", (False,), "the conversation's format has its own"),
    _refused("chat_template", (), "conversations are rendered in harmony"),
    _refused("documents", ([],), "put them into a message"),
    _refused("task", (), "the model has no such tasks"),
    _refused("input_ids", (), "give messages"),
    _refused("lora_path", (), "there are no adapters"),
    _refused("include_stop_str_in_output no_stop_trim", (False,), "an answer ends before the stop string"),
    _refused("stop_regex", ([], ""), "give `stop`"),
    _refused("skip_special_tokens", (True,), "an answer has no special tokens"),
    _refused("repetition_detection", (), "give a penalty"),
    _refused("logits_processors custom_logit_processor", ([],), "no code of a request is run"),
    _refused("custom_params vllm_xargs", ({},), "there are no extensions"),
    _refused(
        "return_tokens_as_token_ids return_token_ids return_prompt_token_ids return_prompt_text "
        "return_hidden_states return_routed_experts return_meta_info enable_response_messages",
        (False,),
        "the answer has no such part",
    ),
    _refused("structural_tag structured_outputs.structural_tag", (), "give functions, or a grammar"),
    _refused(
        "guided_whitespace_pattern structured_outputs.whitespace_pattern",
        (),
        "JSON has the white space that the model writes",
    ),
    _refused(
        "structured_outputs.disable_any_whitespace",
        (False,),
        "JSON has the white space that the model writes",
    ),
    _refused(
        "structured_outputs.disable_additional_properties",
        (False,),
        "say it in the schema: `additionalProperties`",
    ),
    _refused("tools[].defer_loading", (False,), "the model sees all functions"),
    _refused("tools[].function.defer_loading", (False,), "the model sees all functions", CHAT),
    _refused("tools[].allowed_callers", (["direct"],), "only the model calls functions", RESPONSES),
    _refused("tools[].output_schema", (), "results are what the caller gives", RESPONSES),
    _refused("tools[].async", (False,), "a call ends the answer", RESPONSES),
)

TABLE: tuple[Fields, ...] = HONOURED + WITHOUT_EFFECT + REFUSED
