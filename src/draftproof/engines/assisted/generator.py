"""transformers' `generate`, asked for one request at a time, plain or with a drafter. Judges nothing of what it gives."""

import copy
from dataclasses import replace
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from draftproof.engines.assisted.drafting import (
    CONFIG,
    WAYS,
    Drafter,
    fixed_length,
    is_cut,
    put_back,
    require_fit,
    way_of,
    with_own_modules,
)
from draftproof.engines.assisted.hush import hushed
from draftproof.engines.assisted.seed import seeded
from draftproof.engines.assisted.watched import Watched
from draftproof.errors import ModelError, NumericsError
from draftproof.request import SamplingParams


class Generator:
    """
    A target and what drafts for it.

    Parameters are those of `engines.hf.HfEngine`.

    Attributes
    ----------
    model, draft : PreTrainedModel, PreTrainedModel or None
        Twins on the same weights as what was given. generate fills what a request leaves open from the model's own config, so
        theirs say nothing but how to draft.
    way : str
        A row of `drafting.WAYS`.
    drafter : Drafter
    refused : frozenset of str
        What a request may not ask for, for the sake of the way of drafting.

    Raises
    ------
    ModelError
        transformers would not draft so with these models.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_speculative_tokens: int,
        prompt_lookup_max: int,
        draft: PreTrainedModel | None,
        draft_tokenizer: PreTrainedTokenizerBase | None,
        exit_layer: int | None,
    ) -> None:
        self.model = _twin(model, num_speculative_tokens)
        self.draft: Any = None if draft is None else _twin(draft, num_speculative_tokens)
        self.way = way_of(draft, draft_tokenizer, exit_layer)
        self.drafter = self._sampling = Drafter(
            num_speculative_tokens=num_speculative_tokens,
            prompt_lookup_max=prompt_lookup_max,
            exit_layer=exit_layer,
            model=self.draft,
            tokenizer=draft_tokenizer,
            target_tokenizer=tokenizer,
        )
        self.refused = WAYS[self.way].refused
        require_fit(self.way, self.model, self.drafter)
        if WAYS[self.way].changes_draft:
            # generate remembers by the tokenizer what it has changed
            self._sampling = replace(
                self.drafter, model=with_own_modules(self.draft), tokenizer=copy.copy(draft_tokenizer)
            )
        self._layers = getattr(self.model.config, "num_hidden_layers", None)

    def run(self, token_ids: list[int], params: SamplingParams, seen: Watched, *, speculate: bool) -> str | None:
        """
        Run one request.

        Parameters
        ----------
        token_ids : list of int
            The prompt.
        seen : Watched
            Gets what comes.
        speculate : bool

        Returns
        -------
        str or None
            Why it ended before its end, in one line.

        Raises
        ------
        ModelError
            transformers does not run this arm with this model.
        """
        inputs = torch.tensor([token_ids], device=self.model.device)
        ids = params.allowed_token_ids
        allowed = None if ids is None else torch.tensor(ids, device=inputs.device)
        drafter = self.drafter if params.is_greedy else self._sampling

        def watch(module: object, args: object, kwargs: dict[str, Any], output: Any) -> None:
            # a draft that is a copy of the target shares its hooks, and an early exit is the target itself
            if module is self.model and not is_cut(self.model, self._layers):
                seen.see_pass(kwargs["input_ids"], output.logits)

        try:
            with (
                hushed(),
                seeded(params.seed, inputs.device),
                put_back(self.model),
                self.model.register_forward_hook(watch, with_kwargs=True),
            ):
                self.model.generate(
                    inputs,
                    attention_mask=torch.ones_like(inputs),
                    generation_config=self._config(params, seen, speculate),
                    stopping_criteria=[seen],
                    prefix_allowed_tokens_fn=None if allowed is None else lambda *_: allowed,
                    **(WAYS[self.way].arguments(drafter) if speculate else {}),
                )
        except ValueError as refusal:
            raise ModelError(f"transformers does not run {type(self.model).__name__}: {_one_line(refusal)}") from None
        except (RuntimeError, IndexError, NumericsError) as failure:
            return _one_line(failure)
        return None

    def _config(self, params: SamplingParams, seen: Watched, speculate: bool) -> GenerationConfig:
        options: dict[str, Any] = {"do_sample": not params.is_greedy}
        if not params.is_greedy:
            # top_k left open would be 50
            options |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        if speculate:
            options |= WAYS[self.way].config(self.drafter)
        config: GenerationConfig = CONFIG(
            max_new_tokens=seen.stop.max_tokens, eos_token_id=sorted(seen.stop.end_token_ids) or None, **options
        )
        return config


def _twin(model: PreTrainedModel, num_speculative_tokens: int) -> Any:
    twin = cast(Any, copy.copy(model))
    twin.generation_config = fixed_length(num_speculative_tokens)
    return twin


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
