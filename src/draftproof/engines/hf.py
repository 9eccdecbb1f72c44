"""transformers' own `generate`, plain and assisted, as an engine: this module only asks, cuts and times."""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

from draftproof.decoding.stopping import StopRule
from draftproof.engines.base import Capabilities, ControlArm, OnCompletion, WrapRule
from draftproof.engines.load import hash_model, load_model, tokenizers_differ
from draftproof.engines.prompts import (
    ENGINE_SPECIFIC,
    encode_prompt,
    eos_token_ids,
    pair_with_params,
    refuse,
    stop_rule,
)
from draftproof.engines.runtime import describe_runtime
from draftproof.engines.teacher import teacher_forced_logits
from draftproof.engines.widen import HALF, float32_copy
from draftproof.errors import InputError, ModelError, NumericsError
from draftproof.records import Chunk, Completion
from draftproof.request import FinishReason, Prompt, SamplingParams

# transformers leaves its constructor untyped
REQUEST_CONFIG: Any = GenerationConfig


class HfEngine:
    """
    A model run by ``model.generate``, one request at a time; the speculation is prompt lookup or a draft model.

    Parameters
    ----------
    model : PreTrainedModel
        The target, a causal decoder in eval mode. Neither it nor its generation config is changed; of that config only
        the EOS ids are used, so that no penalty or temperature that a model ships with reaches a request.
    tokenizer : PreTrainedTokenizerBase
    num_speculative_tokens : int, 1 or more
        K, the most tokens proposed per round (``prompt_lookup_num_tokens``, ``num_assistant_tokens``).
    prompt_lookup_max : int, 1 or more
        Longest n-gram that is looked up (``max_matching_ngram_size``); the shortest is always 1.
    max_len : int, 2 or more
        Longest sequence in tokens, prompt included; at most the models' own limits less K.
    draft : PreTrainedModel or None
        Proposes K tokens every round (``assistant_model``), in place of prompt lookup; its token ids are the target's.

    Raises
    ------
    InputError
        A value is out of its range.

    Notes
    -----
    A seed fixes the tokens of each arm, not the same tokens in both: a block draws at each of its positions, also at
    those that are then rejected. Logits that are not finite, and a failure inside a pass, end their own request with
    ``finish_reason="error"``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_speculative_tokens: int = 5,
        prompt_lookup_max: int = 4,
        max_len: int = 2048,
        draft: PreTrainedModel | None = None,
    ) -> None:
        for name, value, least in (
            ("num_speculative_tokens", num_speculative_tokens, 1),
            ("prompt_lookup_max", prompt_lookup_max, 1),
            ("max_len", max_len, 2),
        ):
            if value < least:
                raise InputError(f"{name} = {value}: allowed {least} or more")
        limits = [getattr(one.config, "max_position_embeddings", None) for one in (model, draft) if one is not None]
        # prompt lookup proposes past the end of a request, and a model with learned positions has none there
        self.max_len = min([max_len, *(int(limit) - num_speculative_tokens for limit in limits if limit)])
        self.tokenizer = tokenizer
        self.num_speculative_tokens, self.prompt_lookup_max = num_speculative_tokens, prompt_lookup_max
        self._eos = eos_token_ids(model, tokenizer)
        # generate fills what a request leaves open from the model's own config: so this twin, on the same weights, has
        # a blank one
        self._model = cast(Any, copy.copy(model))
        self._model.generation_config = REQUEST_CONFIG()
        self._draft = None if draft is None else cast(Any, copy.copy(draft))
        if self._draft is not None:
            self._draft.generation_config = REQUEST_CONFIG(
                num_assistant_tokens=num_speculative_tokens,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
            )
        self.model_files: dict[str, Any] = {"target": None, "drafts": None}  # not known of models in memory
        self.vocab_size = int(self._model.get_output_embeddings().weight.shape[0])

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        *,
        num_speculative_tokens: int = 5,
        prompt_lookup_max: int = 4,
        dtype: str = "bfloat16",
        device: str = "cpu",
        max_len: int = 2048,
        draft: str | None = None,
        progress: Callable[[str], None] = lambda message: None,
    ) -> "HfEngine":
        """
        Load a target and make an engine.

        Parameters
        ----------
        target : str
            "smollm2-135m-instruct", a folder with safetensors, a .gguf file, or a hub name.
        dtype : {"bfloat16", "float32", "float64"}
        progress : callable
            Gets one line for each slow step.
        num_speculative_tokens, prompt_lookup_max, max_len
            As for `HfEngine`.
        draft : str or None
            A draft model, named as a target is.

        Raises
        ------
        ModelError
            A model cannot be loaded, or the draft has another tokenizer.
        """
        model, tokenizer = load_model(target, dtype=dtype, device=device, progress=progress)
        assistant: PreTrainedModel | None = None
        if draft is not None:
            assistant, draft_tokenizer = load_model(draft, dtype=dtype, device=device, progress=progress)
            difference = tokenizers_differ(tokenizer, draft_tokenizer)
            if difference:
                raise ModelError(
                    f"draft '{draft}' has another tokenizer than '{target}': {difference}; use a draft with the target's tokenizer"
                )
        engine = cls(
            model,
            tokenizer,
            num_speculative_tokens=num_speculative_tokens,
            prompt_lookup_max=prompt_lookup_max,
            max_len=max_len,
            draft=assistant,
        )
        engine.model_files = {
            "target": hash_model(target, progress),
            "drafts": [] if draft is None else [hash_model(draft, progress)],
        }
        return engine

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        return Capabilities(
            name="transformers",
            claim="up_to_ties",
            claim_basis="the two arms run passes of different shapes, which round differently; not measured",
            max_batch=1,
            max_len=self.max_len,
            reports_rounds=False,
            allowed_token_ids=True,
            score=True,
            replaceable_rule=False,
            num_speculative_tokens=self.num_speculative_tokens,
            details={
                "dtype": str(self._model.dtype).removeprefix("torch."),
                "device": str(self._model.device),
                "attention": self._model.config._attn_implementation,
                "prompt_lookup_max": self.prompt_lookup_max,
                "draft_model": self._draft is not None,
                "transformers": transformers.__version__,
                "torch": str(torch.__version__),
                "model": self.model_files,
                "runtime": describe_runtime(self._model.device),
            },
            score_passes=True,
            logprobs=False,
            control_arms=("own draft", "float32") if self._model.dtype in HALF else ("own draft",),
        )

    def now_ms(self) -> float:
        """See `EngineProtocol.now_ms`."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return time.perf_counter() * 1e3

    def encode(self, prompt: Prompt) -> list[int]:
        """See `EngineProtocol.encode`."""
        return encode_prompt(self.tokenizer, prompt, self.vocab_size, self.max_len)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """
        Run the prompts one after the other and return one completion each, in order.

        All are submitted at once: the times of the second one include its wait for the first.

        Parameters
        ----------
        prompts : sequence of str, chat messages or token ids
        params : SamplingParams, or one for each prompt
        speculate : bool
            False is the target-only arm: the same model, nothing proposed.
        on_completion : callable
            Gets (index, completion) as each request ends.

        Raises
        ------
        PromptError, InputError
            Something given cannot be used, or asks for what this engine would ignore; nothing has run then.
        ModelError
            transformers does not run this arm with this model.
        """
        requests = [(self.encode(prompt), item) for prompt, item in pair_with_params(prompts, params, self.vocab_size)]
        for _, item in requests:
            refuse(item, ENGINE_SPECIFIC, self.capabilities.name)
        submitted_ms = self.now_ms()
        completions = []
        for index, (token_ids, item) in enumerate(requests):
            completions.append(self._run(token_ids, item, speculate, submitted_ms))
            if on_completion:
                on_completion(index, completions[-1])
        return completions

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """See `EngineProtocol.score`."""
        return teacher_forced_logits(self._model, prompt_token_ids, token_ids)

    @torch.no_grad()
    def score_passes(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], passes: Sequence[tuple[int, int]]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """See `EngineProtocol.score_passes`: transformers' own cache, cropped; the first pass reads the prompt too."""
        sequence, read, kept_so_far = [*prompt_token_ids, *token_ids], 0, len(prompt_token_ids) - 1
        cache = cast(Any, DynamicCache(config=self._model.config))
        cache.activate_past_recording()
        for width, kept in passes:
            kept_so_far += kept
            block = sequence[read:kept_so_far]
            block += block[-1:] * (width - kept)
            input_ids = torch.tensor([block], device=self._model.device)
            mask = torch.ones(1, read + len(block), dtype=torch.int64, device=input_ids.device)
            output = self._model(input_ids, attention_mask=mask, cache=cache, use_cache=True, logits_to_keep=width)
            if width > kept:
                cache.crop(kept - width)
            read = kept_so_far
            yield output.logits[0, :kept].float().cpu().numpy()

    def control_arm(self, name: ControlArm) -> "HfEngine":
        """See `EngineProtocol.control_arm`."""
        own = name == "own draft"
        return HfEngine(
            self._model if own else float32_copy(self._model),
            self.tokenizer,
            num_speculative_tokens=self.num_speculative_tokens,
            prompt_lookup_max=self.prompt_lookup_max,
            max_len=self.max_len,
            draft=self._model if own else self._draft,
        )._ending_at(self._eos)

    def _ending_at(self, eos: frozenset[int]) -> "HfEngine":
        # a copy of the model has a blank generation config, and so names no end
        self._eos = eos
        return self

    def sibling(self, *, max_batch: int, max_len: int, accept: WrapRule | None = None) -> "HfEngine":
        """
        Return this engine, whose batch is fixed.

        Raises
        ------
        InputError
            A rule was given: the accept rule is inside transformers.
        """
        if accept is not None:
            raise InputError("an accept rule was given, and that of transformers cannot be replaced; give None")
        return self

    def memory(self) -> dict[str, int | None]:
        """See `EngineProtocol.memory`; the caches grow and go with each request."""
        target, draft = (
            None if model is None else sum(parameter.nbytes for parameter in model.parameters())
            for model in (self._model, self._draft)
        )
        return {"target_weights": target, "target_cache": None, "draft_weights": draft, "draft_cache": None}

    def close(self) -> None:
        """Drop the models."""
        del self._model, self._draft

    def _run(self, token_ids: list[int], params: SamplingParams, speculate: bool, submitted_ms: float) -> Completion:
        stop = stop_rule(self.tokenizer, params, eos=self._eos, room=self.max_len - len(token_ids))
        committed = _Committed(len(token_ids), stop, lambda: self.now_ms() - submitted_ms)
        inputs = torch.tensor([token_ids], device=self._model.device)
        ids = params.allowed_token_ids
        allowed = None if ids is None else torch.tensor(ids, device=inputs.device)
        error: str | None = None
        widths: list[int] = []

        def watch(module: object, args: object, kwargs: dict[str, Any], output: Any) -> None:
            # a draft that is a copy of the target shares its hooks
            if module is self._model:
                _require_finite(output)
                # the first pass reads all of the prompt but for its last token besides
                widths.append(kwargs["input_ids"].shape[1] - (0 if widths else len(token_ids) - 1))

        try:
            with _seeded(params.seed, inputs.device), self._model.register_forward_hook(watch, with_kwargs=True):
                self._model.generate(
                    inputs,
                    assistant_model=self._draft if speculate else None,
                    attention_mask=torch.ones_like(inputs),
                    generation_config=self._config(params, stop, speculate),
                    stopping_criteria=[committed],
                    prefix_allowed_tokens_fn=None if allowed is None else lambda *_: allowed,
                )
        except ValueError as refusal:
            raise ModelError(f"transformers does not run {type(self._model).__name__}: {_one_line(refusal)}") from None
        except (RuntimeError, NumericsError) as failure:
            committed.finish_reason, error = "error", _one_line(failure)
        assert committed.finish_reason is not None
        return Completion(
            token_ids=tuple(committed.token_ids),
            text=stop.text(committed.token_ids),
            finish_reason=committed.finish_reason,
            logprobs=None,
            rounds=(),
            speculation=None,
            chunks=tuple(committed.chunks),
            num_prompt_tokens=len(token_ids),
            error=error,
            pass_widths=tuple(widths[: len(committed.chunks)]),
        )

    def _config(self, params: SamplingParams, stop: StopRule, speculate: bool) -> GenerationConfig:
        options: dict[str, Any] = {"do_sample": not params.is_greedy}
        if not params.is_greedy:
            # top_k left open would be 50
            options |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        if speculate and self._draft is None:
            options |= {
                "prompt_lookup_num_tokens": self.num_speculative_tokens,
                "max_matching_ngram_size": self.prompt_lookup_max,
            }
        config: GenerationConfig = REQUEST_CONFIG(
            max_new_tokens=stop.max_tokens, eos_token_id=sorted(stop.end_token_ids) or None, **options
        )
        return config


class _Committed(StoppingCriteria):
    """
    The tokens of one request, cut where it ends and timed.

    generate asks it after every round of either arm, with the whole sequence, whether to stop. So the output, its
    end and its times come from one list; a streamer would see tokens beyond a stop string.
    """

    def __init__(self, num_prompt: int, stop: StopRule, age_ms: Callable[[], float]) -> None:
        self.num_prompt, self.stop, self.age_ms = num_prompt, stop, age_ms
        self.token_ids: list[int] = []
        self.chunks: list[Chunk] = []
        self.finish_reason: FinishReason | None = None

    def __call__(self, input_ids: Tensor, scores: object, **_: Any) -> Tensor:
        if self.finish_reason is None:
            new = input_ids[0, self.num_prompt + len(self.token_ids) :].tolist()
            at_ms = self.age_ms()
            kept, self.finish_reason = self.stop.cut(self.token_ids, new)
            self.token_ids += kept
            self.chunks.append(Chunk(num_tokens=len(kept), at_ms=at_ms))
        return torch.full((1,), self.finish_reason is not None, device=input_ids.device)


def _require_finite(output: Any) -> None:
    """Stop a request whose logits are not finite: argmax would take one of them, and multinomial breaks the device."""
    if not output.logits.isfinite().all():
        raise NumericsError("the target's logits are not finite")


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generator that draws on `device`, and put its state back afterwards; `torch.manual_seed` would seed all."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
