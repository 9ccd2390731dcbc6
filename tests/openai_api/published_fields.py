"""The names of the fields of published request types, written down from their sources.

OpenAI: the `openai` package 3.54, `CompletionCreateParams` and `ResponseCreateParams`, with their objects.
vLLM: `ChatCompletionRequest` and `ResponsesRequest`, as they are today and as they were when constraints were
called `guided_*`. SGLang: its classes of the same names.
"""

from __future__ import annotations

OPENAI_CHAT = """
audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty
prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools
top_logprobs top_p user verbosity web_search_options stream_options.include_obfuscation
stream_options.include_usage response_format.type response_format.json_schema
response_format.json_schema.name response_format.json_schema.description
response_format.json_schema.schema response_format.json_schema.strict tools[].type tools[].function
tools[].function.name tools[].function.description tools[].function.parameters tools[].function.strict
tool_choice.type tool_choice.function tool_choice.allowed_tools messages[].role messages[].content
messages[].name messages[].tool_calls messages[].tool_call_id messages[].refusal messages[].audio
messages[].function_call
"""

OPENAI_RESPONSES = """
access_programs background background_options context_management conversation image include input
instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
safety_identifier service_tier store stream stream_options temperature text tool_choice tools
top_logprobs top_p truncation user reasoning.context reasoning.effort reasoning.generate_summary
reasoning.mode reasoning.summary text.format text.verbosity text.format.type text.format.name
text.format.schema text.format.description text.format.strict stream_options.include_obfuscation
tool_choice.type tool_choice.name tool_choice.mode tool_choice.tools tools[].type tools[].name
tools[].parameters tools[].strict tools[].description tools[].async tools[].allowed_callers
tools[].defer_loading tools[].output_schema
"""

VLLM_CHAT = """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice
reasoning_effort thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k
min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos
min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt
continue_final_message add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs
mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids
return_token_ids routed_experts_prompt_start return_token_offsets return_prompt_text return_mm_kwargs
cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval best_of
guided_json guided_regex guided_choice guided_grammar structural_tag guided_decoding_backend
guided_whitespace_pattern logits_processors structured_outputs.json structured_outputs.regex
structured_outputs.choice structured_outputs.grammar structured_outputs.json_object
structured_outputs.disable_fallback structured_outputs.disable_any_whitespace
structured_outputs.disable_additional_properties structured_outputs.whitespace_pattern
structured_outputs.structural_tag stream_options.continuous_usage_stats messages[].reasoning
tools[].defer_loading tools[].function.defer_loading
"""

VLLM_RESPONSES = """
background include input instructions max_output_tokens max_tool_calls metadata model logit_bias
parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature text
tool_choice tools top_logprobs top_p top_k truncation user skip_special_tokens include_stop_str_in_output
prompt_cache_key request_id mm_processor_kwargs priority cache_salt enable_response_messages
previous_input_messages previous_response structured_outputs repetition_penalty seed stop ignore_eos
vllm_xargs
"""

SGLANG_CHAT = """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
presence_penalty response_format seed stop stream stream_options temperature top_p user tools tool_choice
parallel_tool_calls return_hidden_states return_routed_experts routed_experts_start_len
return_cached_tokens_details return_prompt_token_ids return_token_ids return_meta_info reasoning_effort
task top_k min_p min_tokens regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim
ignore_eos continue_final_message skip_special_tokens lora_path session_id session_params
separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch
use_audio_in_video images_config custom_logit_processor custom_params input_ids rid extra_key cache_salt
ngram_corpus_id priority bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
disagg_prefill_dp_rank data_parallel_rank reasoning reasoning.effort reasoning.enabled
messages[].reasoning_content messages[].tools
"""

SGLANG_RESPONSES = """
background include input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls
previous_response_id reasoning service_tier store stream temperature text tool_choice tools top_logprobs
top_p truncation user chat_template_kwargs request_id session_id priority extra_key cache_salt
ngram_corpus_id frequency_penalty presence_penalty stop top_k min_p repetition_penalty
"""

PUBLISHED = {
    "OpenAI chat": ("chat", OPENAI_CHAT),
    "OpenAI responses": ("responses", OPENAI_RESPONSES),
    "vLLM chat": ("chat", VLLM_CHAT),
    "vLLM responses": ("responses", VLLM_RESPONSES),
    "SGLang chat": ("chat", SGLANG_CHAT),
    "SGLang responses": ("responses", SGLANG_RESPONSES),
}
