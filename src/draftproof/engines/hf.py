"""
transformers' own `generate`, plain and assisted, as an engine: this module only asks.

How it drafts is `engines/assisted/drafting.py`, what is seen of a request `engines/assisted/watched.py`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.engines.assisted.generator import Generator
from draftproof.engines.assisted.replay import replay
from draftproof.engines.assisted.watched import Watched
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
from draftproof.errors import InputError, ModelError
from draftproof.records import Completion
from draftproof.request import Prompt, SamplingParams


class HfEngine:
    """
    A model run by ``model.generate``, one request at a time.

    Parameters
    ----------
    model : PreTrainedModel
        The target, a causal decoder in eval mode. Neither it nor its generation config is changed; of that config only
        the EOS ids are used, so that no penalty or temperature that a model ships with reaches a request.
    tokenizer : PreTrainedTokenizerBase
    num_speculative_tokens : int, 1 or more
        K, the most tokens proposed per round (``prompt_lookup_num_tokens``, ``num_assistant_tokens``); with another tokenizer
        they are the draft's.
    prompt_lookup_max : int, 1 or more
        Longest n-gram that is looked up (``max_matching_ngram_size``); the shortest is always 1.
    max_len : int, 2 or more
        Longest sequence in tokens, prompt included; at most the models' own limits less K.
    draft : PreTrainedModel or None
        Proposes K tokens every round (``assistant_model``), in place of prompt lookup; its token ids are the target's.
    draft_tokenizer : PreTrainedTokenizerBase or None
        The draft's, where it is not the target's (``assistant_tokenizer``).
    exit_layer : int or None
        Layers of the target that draft, in place of a draft model (``assistant_early_exit``).

    Raises
    ------
    InputError
        A value is out of its range.
    ModelError
        transformers would not draft so with these models.

    Notes
    -----
    Drafted and accepted tokens are counted by the target's passes: what it read beyond the output, and what stayed of that.

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
        draft_tokenizer: PreTrainedTokenizerBase | None = None,
        exit_layer: int | None = None,
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
        self._generator = Generator(
            model,
            tokenizer,
            num_speculative_tokens=num_speculative_tokens,
            prompt_lookup_max=prompt_lookup_max,
            draft=draft,
            draft_tokenizer=draft_tokenizer,
            exit_layer=exit_layer,
        )
        self._model = self._generator.model
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
        cross_tokenizer: bool = False,
        exit_layer: int | None = None,
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
        num_speculative_tokens, prompt_lookup_max, max_len, exit_layer
            As for `HfEngine`.
        draft : str or None
            A draft model, named as a target is.
        cross_tokenizer : bool
            Whether the draft may have another tokenizer.

        Raises
        ------
        ModelError
            A model cannot be loaded, the draft has another tokenizer and may not, or transformers would not draft so.
        """
        model, tokenizer = load_model(target, dtype=dtype, device=device, progress=progress)
        assistant: PreTrainedModel | None = None
        draft_tokenizer: PreTrainedTokenizerBase | None = None
        if draft is not None:
            assistant, draft_tokenizer = load_model(draft, dtype=dtype, device=device, progress=progress)
            difference = None if cross_tokenizer else tokenizers_differ(tokenizer, draft_tokenizer)
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
            draft_tokenizer=draft_tokenizer if cross_tokenizer else None,
            exit_layer=exit_layer,
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
            allowed_token_ids="allowed_token_ids" not in self._generator.refused,
            score=True,
            replaceable_rule=False,
            num_speculative_tokens=self.num_speculative_tokens,
            details={
                "dtype": str(self._model.dtype).removeprefix("torch."),
                "device": str(self._model.device),
                "attention": self._model.config._attn_implementation,
                "prompt_lookup_max": self.prompt_lookup_max,
                "proposer": self._generator.way,
                "draft_model": self._generator.draft is not None,
                "exit_layer": self._generator.drafter.exit_layer,
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
            refuse(item, ENGINE_SPECIFIC | self._generator.refused, self.capabilities.name)
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

    def score_passes(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], passes: Sequence[tuple[int, int]]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """See `EngineProtocol.score_passes`."""
        return replay(self._model, prompt_token_ids, token_ids, passes)

    def control_arm(self, name: ControlArm) -> "HfEngine":
        """See `EngineProtocol.control_arm`."""
        own, drafter = name == "own draft", self._generator.drafter
        drafts: dict[str, Any] = {"draft": self._model}
        if not own:
            drafts = {"draft": drafter.model, "draft_tokenizer": drafter.tokenizer, "exit_layer": drafter.exit_layer}
        return HfEngine(
            self._model if own else float32_copy(self._model),
            self.tokenizer,
            num_speculative_tokens=self.num_speculative_tokens,
            prompt_lookup_max=self.prompt_lookup_max,
            max_len=self.max_len,
            **drafts,
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
            for model in (self._model, self._generator.draft)
        )
        return {"target_weights": target, "target_cache": None, "draft_weights": draft, "draft_cache": None}

    def close(self) -> None:
        """Drop the models."""
        del self._model, self._generator

    def _run(self, token_ids: list[int], params: SamplingParams, speculate: bool, submitted_ms: float) -> Completion:
        stop = stop_rule(self.tokenizer, params, eos=self._eos, room=self.max_len - len(token_ids))
        seen = Watched(len(token_ids), stop, lambda: self.now_ms() - submitted_ms)
        error = self._generator.run(token_ids, params, seen, speculate=speculate)
        if error:
            seen.finish_reason = "error"
        assert seen.finish_reason is not None
        return Completion(
            token_ids=tuple(seen.token_ids),
            text=stop.text(seen.token_ids),
            finish_reason=seen.finish_reason,
            logprobs=None,
            rounds=(),
            speculation=seen.speculation(self.num_speculative_tokens) if speculate else None,
            chunks=tuple(seen.chunks),
            num_prompt_tokens=len(token_ids),
            error=error,
            pass_widths=tuple(seen.widths[: len(seen.chunks)]),
        )
