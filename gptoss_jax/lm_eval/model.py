"""`GptOssLM`: the model class that lm_eval calls `gptoss-jax`. Importing this module registers it."""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import lm_eval.models  # noqa: F401  # lm_eval registers its own models only while there are no others
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from gptoss_jax.answers import Sample, read_sample
from gptoss_jax.compilation_cache import keep_compiled
from gptoss_jax.engine.request import Request, RequestError
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.llm.prompts import rendered_prompt
from gptoss_jax.lm_eval.arguments import Arguments, arguments_from
from gptoss_jax.lm_eval.prompts import context_of, prompt_of
from gptoss_jax.lm_eval.report import Tally, append_row, cut_of
from gptoss_jax.lm_eval.sampling import Asked, answer_of, asked_by, sampling_for, seed_of
from harmony.errors import shown

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CacheHook

_logger = logging.getLogger("lm_eval.gptoss_jax")
"""Below lm_eval's own logger, which alone is shown."""

_CACHE_KEY = "gptoss-jax settings"


class LikelihoodRefused(NotImplementedError):
    """A task asks for the likelihood of a text, which gpt-oss is not scored by."""


class _Plan(NamedTuple):
    """One request of lm_eval: its place among the repeats of its document, and what the engine is given."""

    instance: Instance
    repeat: int
    asked: Asked
    prefix: str
    request: Request


@register_model("gptoss-jax")
class GptOssLM(LM):  # type: ignore[misc]
    """gpt-oss behind lm_eval's interface: prompts by harmony, all answers of a call batched by the engine."""

    def __init__(
        self,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **arguments: Any,
    ) -> None:
        """Loads the model.

        Args:
            batch_size: a number above 1 is the engine's `slots`; else they have their default.
            max_batch_size, device: without effect; `JAX_PLATFORMS` chooses the device.
            arguments: those of `--model_args`: the fields of `Arguments`, and the engine's options.

        Raises:
            RequestError: an argument is unknown, or its value is not allowed.
            checkpoints.config.CheckpointError, gptoss_jax.sizes.ShardingError,
            gptoss_jax.engine.memory.EngineMemoryError: as for `gptoss_jax.LLM`.
        """
        super().__init__()
        self.arguments: Arguments = arguments_from(arguments, batch_size)
        self._date_given = "date" in arguments
        keep_compiled()
        self._engine, self._encoding, opened = load_engine(
            self.arguments.checkpoint,
            dtype=self.arguments.dtype,
            mesh=self.arguments.mesh,
            **self.arguments.engine,
        )
        if not self._engine.is_leader:
            raise RequestError(
                "lm_eval runs gptoss-jax in one process: jax.distributed must not be initialised"
            )
        self._name = "tiny" if self.arguments.checkpoint == "tiny" else opened.path.name
        self._warned: set[str] = set()

    # What lm_eval records

    @property
    def tokenizer_name(self) -> str:
        """Names the form of the texts that `--cache_requests` keeps."""
        return "gptoss-jax-chat"

    @property
    def max_length(self) -> int:
        """The longest sequence, prompt and completion together, in tokens."""
        return self._engine.max_length

    def chat_template(self, chat_template: bool | str = False) -> str:
        """A prompt of harmony with "{question}" in the user's place: what `--apply_chat_template` gives.

        Raises:
            RequestError: a template is asked for by name.
        """
        if isinstance(chat_template, str):
            raise RequestError(
                f"there is no chat template {shown(chat_template)}: gptoss-jax has harmony alone, so give "
                "--apply_chat_template without a name"
            )
        return self._encoding.decode(self._rendered([{"role": "user", "content": "{question}"}]))

    def get_model_info(self) -> dict[str, object]:
        """What the results tell of the model."""
        return {
            "gptoss_jax": {**self._settings(), "date": self.arguments.date, "max_length": self.max_length}
        }

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, object]], add_generation_prompt: bool = True
    ) -> str:
        """The messages of a document, as a text that lm_eval keeps: see `gptoss_jax.lm_eval.prompts`.

        Raises:
            RequestError: the messages are not what a prompt can be made of.
        """
        return context_of(chat_history, answer_begun=not add_generation_prompt)

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Takes the cache of `--use_cache`, which must hold answers of the same settings only.

        lm_eval looks answers up by their prompts alone.

        Raises:
            RequestError: the cache is that of another model, or of other settings.
        """
        answers = getattr(cache_hook, "dbdict", None)
        if answers is not None:
            settings = self._settings()
            kept = answers.get(_CACHE_KEY)
            if kept is None and len(answers):
                raise RequestError("--use_cache: the file has another model's answers: give another one")
            for name, value in (kept or {}).items():
                if settings.get(name) != value:
                    raise RequestError(
                        f"--use_cache: the file has answers with {name} {value}, not {settings.get(name)}: "
                        "give another one"
                    )
            answers[_CACHE_KEY] = settings
        super().set_cache_hook(cache_hook)

    # Answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers requests. An answer is the text of the `final` message, before the first stop string.

        Args:
            requests: each with the arguments (context, generation arguments).
            disable_tqdm: True shows no progress.

        Returns:
            The answers, in the order of the requests.

        Raises:
            RequestError: a request cannot be run; then none is.
            RuntimeError: the engine failed on some requests, after all others were answered.
        """
        plans = self._plans(requests)
        answers = [""] * len(plans)
        failed: list[str] = []
        tally = Tally()
        with tqdm(total=len(plans), desc="gptoss-jax", unit=" answers", disable=disable_tqdm) as bar:
            for completion in self._engine.run([plan.request for plan in plans]):
                place = int(completion.id)
                plan = plans[place]
                bar.update()
                if completion.error is not None:
                    failed.append(completion.error)
                    continue
                sample = read_sample(completion, self._encoding)
                answers[place] = answer = answer_of(sample.text, plan.asked, plan.prefix)
                tally.add(sample, answer)
                self._log(plan, sample, answer)
                self.cache_hook.add_partial("generate_until", plan.instance.args, answer)
        if tally.answers:
            _logger.log(logging.WARNING if tally.worrying else logging.INFO, "%s", tally)
        if failed:
            raise RuntimeError(
                f"the engine failed on {len(failed)} of {len(plans)} requests ({failed[0]}); with "
                "--use_cache the other answers are kept for the next run"
            )
        return answers

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Raises `LikelihoodRefused`."""
        self._refuse_likelihood(requests)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Raises `LikelihoodRefused`."""
        self._refuse_likelihood(requests)

    def _refuse_likelihood(self, requests: list[Instance]) -> NoReturn:
        tasks = ", ".join(sorted({str(request.task_name) for request in requests}))
        raise LikelihoodRefused(
            f"{tasks}: scored by the likelihood of texts, which leaves out the reasoning that gpt-oss "
            "answers with; run a generative form of the task, such as mmlu_generative, mmlu_pro, "
            "arc_challenge_chat, gpqa_diamond_cot_zeroshot or truthfulqa_gen"
        )

    def _plans(self, requests: list[Instance]) -> list[_Plan]:
        """Renders and checks all requests before the first is answered."""
        rendered: dict[str, tuple[list[int], str]] = {}
        seen: collections.Counter[str] = collections.Counter()
        plans = []
        for place, instance in enumerate(requests):
            context, given = instance.args[:2]
            try:
                asked = asked_by(given, self.arguments.max_gen_toks)
                if context not in rendered:
                    prompt = prompt_of(context)
                    rendered[context] = self._rendered(prompt.messages), prompt.prefix
                tokens, prefix = rendered[context]
                sampling = sampling_for(
                    asked,
                    self.arguments,
                    seed=seed_of(self.arguments.seed, context, seen[context]),
                    room=self.max_length - len(tokens),
                    prefix=prefix,
                    prefix_tokens=len(self._encoding.encode(prefix)) if prefix else 0,
                )
                request = Request(str(place), tokens, sampling)
                self._engine.check(request)
            except RequestError as error:
                raise RequestError(f"{instance.task_name}, document {instance.doc_id}: {error}") from None
            plans.append(_Plan(instance, seen[context], asked, prefix, request))
            seen[context] += 1
            self._tell_unknown(asked.unknown)
        return plans

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        options = {"effort": self.arguments.effort, "date": self.arguments.date}
        return rendered_prompt(list(messages), options, self._encoding).tokens  # type: ignore[arg-type]

    def _tell_unknown(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._warned:
                self._warned.add(name)
                _logger.warning("the generation argument %s has no effect on gptoss-jax", name)

    def _log(self, plan: _Plan, sample: Sample, answer: str) -> None:
        if self.arguments.log_reasoning is None:
            return
        append_row(
            self.arguments.log_reasoning,
            {
                "task": plan.instance.task_name,
                "doc_id": plan.instance.doc_id,
                "repeat": plan.repeat,
                "effort": self.arguments.effort,
                "reasoning": sample.reasoning,
                "answer": answer,
                "finish_reason": sample.finish_reason,
                "cut": cut_of(sample),
                "prompt_tokens": sample.usage.prompt_tokens,
                "completion_tokens": sample.usage.generated_tokens,
                "reasoning_tokens": sample.usage.reasoning_tokens,
            },
        )

    def _settings(self) -> dict[str, object]:
        """What the answers depend on besides prompts and generation arguments."""
        given = self.arguments
        settings = {
            "checkpoint": self._name,
            "effort": given.effort,
            "max_gen_toks": given.max_gen_toks,
            "max_tokens": given.max_tokens,
            "reasoning_budget": given.reasoning_budget,
            "seed": given.seed,
            "dtype": given.dtype,
        }
        return {**settings, **({"date": given.date} if self._date_given else {})}
