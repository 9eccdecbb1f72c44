"""draftproof's own engine: text, chat or token ids in, completions out, around `decoding/loop.py`."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.decoding.batch import Row
from draftproof.decoding.loop import Decoder, RollBack, roll_back
from draftproof.decoding.model import CachedModel
from draftproof.decoding.proposers.base import Proposer, ProposerContext
from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.shapes import any_shapes, measure_shapes
from draftproof.decoding.stopping import StopRule
from draftproof.engines.base import Capabilities, OnCompletion
from draftproof.engines.load import load_model, tokenizers_differ
from draftproof.errors import InputError, ModelError, PromptError
from draftproof.records import Completion, summarise_rounds
from draftproof.request import Prompt, SamplingParams
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.noise import KeyedNoise, Noise

MAX_SPECULATIVE_TOKENS = 15


class Engine:
    """
    Exact speculative decoding of a transformers model.

    Parameters
    ----------
    model : PreTrainedModel
        The target, a causal decoder in eval mode.
    tokenizer : PreTrainedTokenizerBase
    proposer : Proposer or None
        None: every request runs target-only.
    num_speculative_tokens : int, 1 to 15
        K, the most tokens drafted per round.
    max_batch : int, 1 or more
        Requests that run at once.
    max_len : int, 2 or more
        Longest sequence in tokens, prompt included; at most the model's own limit.
    numerics : {"bitwise", "fast"}
        "bitwise" runs passes of one measured shape class, so that greedy output does not depend on speculation or
        batch; "fast" takes any pass and claims identity up to ties only.
    verification : {"rejection"}
    accept, noise, take_back
        Parts of the round that a verifier may replace one at a time.

    Raises
    ------
    InputError, ModelError
        A value is out of its range, or the model cannot be rolled back by length.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        proposer: Proposer | None = None,
        num_speculative_tokens: int = 5,
        max_batch: int = 1,
        max_len: int = 2048,
        numerics: Literal["bitwise", "fast"] = "bitwise",
        verification: Literal["rejection"] = "rejection",
        accept: AcceptRule = rejection,
        noise: Noise | None = None,
        take_back: RollBack = roll_back,
    ) -> None:
        if not 1 <= num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise InputError(
                f"num_speculative_tokens = {num_speculative_tokens}: allowed 1 to {MAX_SPECULATIVE_TOKENS}; choose one of them"
            )
        if max_batch < 1:
            raise InputError(f"max_batch = {max_batch}: allowed 1 or more")
        if max_len < 2:
            raise InputError(f"max_len = {max_len}: allowed 2 or more")
        if numerics not in ("bitwise", "fast"):
            raise InputError(f"numerics = {numerics!r}: allowed 'bitwise' or 'fast'")
        if verification != "rejection":
            raise InputError(f"verification = {verification!r}: allowed 'rejection'")
        limit = getattr(model.config, "max_position_embeddings", None)
        self.max_len = min(max_len, int(limit)) if limit else max_len
        self.tokenizer, self.num_speculative_tokens = tokenizer, num_speculative_tokens
        self._target = CachedModel(model, num_slots=max_batch, max_len=self.max_len, block=num_speculative_tokens + 1)
        self.numerics = numerics
        self.shape_class = measure_shapes(self._target) if numerics == "bitwise" else any_shapes(self._target)
        noise = noise or KeyedNoise()
        if proposer is not None:
            proposer.bind(
                ProposerContext(
                    num_slots=max_batch,
                    max_len=self.max_len,
                    num_speculative_tokens=num_speculative_tokens,
                    vocab_size=self._target.vocab_size,
                    device=model.device,
                    noise=noise,
                )
            )
        self.proposer, self.accept = proposer, accept
        self._decoder = Decoder(
            self._target, proposer, num_speculative_tokens, accept=accept, noise=noise, take_back=take_back
        )
        self._eos = _eos_token_ids(model, tokenizer)
        self._next_id = 0

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        *,
        proposer: Proposer | None = None,
        dtype: str = "bfloat16",
        device: str = "cpu",
        progress: Callable[[str], None] = lambda message: None,
        **options: Any,
    ) -> "Engine":
        """
        Load a target (and a draft model named by the proposer) and make an engine.

        Parameters
        ----------
        target : str
            "smollm2-135m-instruct", a folder with safetensors, a .gguf file, or a hub name.
        dtype : {"bfloat16", "float32", "float64"}
        progress : callable
            Gets one line for each slow step.
        **options
            As for `Engine`.

        Raises
        ------
        ModelError
            A model cannot be loaded, or the draft's token ids are not the target's.
        """
        model, tokenizer = load_model(target, dtype=dtype, device=device, progress=progress)
        if isinstance(proposer, DraftModel):

            def load_draft(name: str) -> PreTrainedModel:
                draft, draft_tokenizer = load_model(name, dtype=dtype, device=device, progress=progress)
                difference = tokenizers_differ(tokenizer, draft_tokenizer)
                if difference:
                    raise ModelError(
                        f"draft '{name}' has another tokenizer than '{target}': {difference}; "
                        "use a draft with the target's tokenizer, or prompt lookup"
                    )
                return draft

            proposer.load(load_draft)
        progress("measuring which pass shapes agree bit for bit")
        return cls(model, tokenizer, proposer=proposer, **options)

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do, and the claim that its load-time self-test supports."""
        measured = self.shape_class
        basis = (
            f"load-time self-test on this machine: {len(measured.agree)} pass shapes equal bit for bit "
            f"({', '.join(measured.agree)}), {measured.threads} threads"
            if self.numerics == "bitwise"
            else "numerics = 'fast': passes of any shape"
        )
        return Capabilities(
            name="draftproof",
            claim=measured.claim,
            claim_basis=basis,
            max_batch=self._target.num_slots,
            max_len=self.max_len,
            reports_rounds=True,
            allowed_token_ids=True,
            score=True,
            details={
                "shape_class": measured.describe(),
                "dtype": str(self._target.dtype).removeprefix("torch."),
                "device": str(self._target.device),
                "attention": self._target.model.config._attn_implementation,
                "num_speculative_tokens": self.num_speculative_tokens,
            },
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """
        Return the token ids of a prompt.

        Raises
        ------
        PromptError
            It is empty, holds an id that the model does not have, or leaves no room for a token.
        """
        if isinstance(prompt, str):
            token_ids = list(self.tokenizer(prompt)["input_ids"])
        elif prompt and isinstance(prompt[0], dict):
            token_ids = list(
                self.tokenizer.apply_chat_template(
                    cast(list[dict[str, str]], list(prompt)), add_generation_prompt=True, return_dict=False
                )
            )
        else:
            token_ids = [int(cast(int, token_id)) for token_id in prompt]
        if not token_ids:
            raise PromptError("a prompt has no tokens; give at least one")
        if min(token_ids) < 0 or max(token_ids) >= self._target.vocab_size:
            raise PromptError(f"a prompt holds an id outside 0..{self._target.vocab_size - 1}, the model's vocabulary")
        if len(token_ids) >= self.max_len:
            raise PromptError(
                f"a prompt has {len(token_ids)} tokens and the context limit is {self.max_len}; shorten it or raise max_len"
            )
        return token_ids

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        speculate: bool = True,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """
        Run the prompts, up to ``max_batch`` at a time, and return one completion each, in order.

        Parameters
        ----------
        prompts : sequence of str, chat messages or token ids
        params : SamplingParams, or one for each prompt
        speculate : bool
            False is the target-only arm: the same engine, nothing proposed.
        on_completion : callable
            Gets (index, completion) as each request ends.
        """
        if isinstance(prompts, str):
            raise PromptError("prompts is one string; give a list of prompts")
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise InputError(f"{len(each)} sampling parameters for {len(prompts)} prompts; give one, or one for each")
        rows = [self._row(prompt, item, speculate) for prompt, item in zip(prompts, each, strict=True)]
        index_of = {row.request_id: index for index, row in enumerate(rows)}
        done: list[Completion | None] = [None] * len(rows)
        for row in rows:
            self._decoder.submit(row)
        try:
            while any(completion is None for completion in done):
                for row in self._decoder.step():
                    if row.finish_reason is not None:
                        completion = self._completion(row)
                        done[index_of[row.request_id]] = completion
                        if on_completion:
                            on_completion(index_of[row.request_id], completion)
        except BaseException:
            for row in rows:
                self._decoder.cancel(row.request_id)
            raise
        return [completion for completion in done if completion is not None]

    def stream(self, prompt: Prompt, params: SamplingParams, *, speculate: bool = True) -> Iterator[Completion]:
        """Yield the completion so far after each round; the last one has its final text and finish reason."""
        row = self._row(prompt, params, speculate)
        self._decoder.submit(row)
        try:
            while row.finish_reason is None:
                if row in self._decoder.step():
                    yield self._completion(row)
        finally:
            self._decoder.cancel(row.request_id)

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """See `EngineProtocol.score`: the plain model over the whole sequences, no cache, no slots."""
        prompt = torch.tensor([list(prompt_token_ids)] * len(token_ids), dtype=torch.int64)
        tail = torch.tensor([list(ids) for ids in token_ids], dtype=torch.int64)
        sequences = torch.cat([prompt, tail], dim=1).to(self._target.device)
        with torch.inference_mode():
            logits = self._target.model(input_ids=sequences, use_cache=False, logits_to_keep=tail.shape[1] + 1).logits[
                :, :-1
            ]
        return cast(npt.NDArray[np.float32], logits.float().cpu().numpy())

    def sibling(self, *, max_batch: int, max_len: int, accept: AcceptRule = rejection) -> "Engine":
        """
        Return an engine on the same models for many short requests at once, or with another accept rule.

        Its passes may be wider than the bitwise class, which changes rounding and not the law.
        """
        return Engine(
            self._target.model,
            self.tokenizer,
            proposer=copy.copy(self.proposer),
            num_speculative_tokens=self.num_speculative_tokens,
            max_batch=max_batch,
            max_len=max_len,
            numerics="fast",
            accept=accept,
        )

    def memory(self) -> dict[str, int | None]:
        """See `EngineProtocol.memory`; draft parts are None without a draft model."""
        draft = self.proposer.cached if isinstance(self.proposer, DraftModel) else None
        return {
            "target_weights": self._target.weight_bytes,
            "target_cache": self._target.store.num_bytes,
            "draft_weights": draft.weight_bytes if draft else None,
            "draft_cache": draft.store.num_bytes if draft else None,
        }

    def close(self) -> None:
        """Drop the models and their stores."""
        del self._decoder, self._target
        self.proposer = None

    def _decode(self, token_ids: Sequence[int]) -> str:
        return cast(str, self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _row(self, prompt: Prompt, params: SamplingParams, speculate: bool) -> Row:
        token_ids = self.encode(prompt)
        allowed = params.allowed_token_ids
        if allowed is not None and max(allowed) >= self._target.vocab_size:
            raise InputError(
                f"allowed_token_ids holds {max(allowed)}; the model's vocabulary is 0..{self._target.vocab_size - 1}"
            )
        stop = StopRule(
            max_tokens=min(params.max_tokens, self.max_len - len(token_ids)),
            eos_token_ids=frozenset() if params.ignore_eos else self._eos,
            stop=params.stop,
            decode=self._decode,
        )
        self._next_id += 1
        return Row(
            request_id=self._next_id,
            token_ids=token_ids,
            num_prompt=len(token_ids),
            params=params,
            stop=stop,
            key=(params.seed, 0),
            speculate=speculate and self.proposer is not None,
            submitted_ms=self._decoder.now_ms(),
        )

    def _completion(self, row: Row) -> Completion:
        return Completion(
            token_ids=tuple(row.generated),
            text=row.stop.cut_text(self._decode(row.generated)),
            finish_reason=row.finish_reason or "length",
            logprobs=None,
            rounds=tuple(row.rounds),
            speculation=summarise_rounds(row.rounds, self.num_speculative_tokens) if row.speculate else None,
            chunks=tuple(row.chunks),
            num_prompt_tokens=row.num_prompt,
            error=row.error,
        )


def _eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ends that the model's generation config and the tokenizer name."""
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    ids = set(named if isinstance(named, list) else [named])
    ids.add(getattr(tokenizer, "eos_token_id", None))
    return frozenset(token_id for token_id in ids if token_id is not None)
