"""draftproof's own engine: text, chat or token ids in, completions out, around `decoding/loop.py`."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftproof.decoding.loop import RollBack, roll_back
from draftproof.decoding.model import CachedModel, context_limit
from draftproof.decoding.proposers.base import Proposer, require_proposer
from draftproof.decoding.proposers.cross_tokenizer import CrossTokenizer
from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.shapes import any_shapes, measure_shapes
from draftproof.engines.base import Capabilities, ControlArm, WrapRule
from draftproof.engines.load import hash_model, load_empty, load_model, tokenizers_differ
from draftproof.engines.memory_plan import plan_memory
from draftproof.engines.pack import Packed, pack_linears
from draftproof.engines.prompts import eos_token_ids
from draftproof.engines.requests import DecoderEngine, require_sizes
from draftproof.engines.runtime import describe_runtime
from draftproof.engines.teacher import teacher_forced_logits
from draftproof.engines.widen import HALF, float32_copy
from draftproof.errors import InputError, ModelError
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_alone, draw_shared
from draftproof.sampling.noise import Noise

VERIFICATIONS = {"rejection": (rejection, draw_alone), "coupled": (coupled, draw_shared)}


class Engine(DecoderEngine):
    """
    Exact speculative decoding of a transformers model, for one thread at a time.

    Parameters
    ----------
    model : PreTrainedModel
        The target, a causal decoder; it is put into eval mode.
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
    verification : {"rejection", "coupled"}
        "rejection" accepts with probability min(1, target / draft), the most that keeps the law; "coupled" gives the same
        tokens for a seed with speculation on or off, and accepts a little less of a draft model.
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
        verification: Literal["rejection", "coupled"] = "rejection",
        accept: AcceptRule | None = None,
        noise: Noise | None = None,
        take_back: RollBack = roll_back,
    ) -> None:
        require_sizes(num_speculative_tokens, max_batch, max_len)
        _require_rules(numerics, verification)
        _require_loaded(model, tokenizer)
        max_len = context_limit(model, max_len)
        self._target = CachedModel(model, num_slots=max_batch, max_len=max_len, block=num_speculative_tokens + 1)
        self.numerics = numerics
        self.shape_class = measure_shapes(self._target) if numerics == "bitwise" else any_shapes(self._target)
        super().__init__(
            self._target,
            proposer,
            num_speculative_tokens,
            tokenizer,
            vocab_size=self._target.vocab_size,
            max_len=max_len,
            eos=eos_token_ids(model, tokenizer),
            accept=accept or VERIFICATIONS[verification][0],
            noise=noise,
            draw=VERIFICATIONS[verification][1],
            take_back=take_back,
        )
        self.verification = verification
        self.model_files: dict[str, Any] = {"target": None, "drafts": None}  # not known of models in memory

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        *,
        proposer: Proposer | None = None,
        dtype: str = "bfloat16",
        device: str = "cpu",
        num_speculative_tokens: int = 5,
        max_batch: int = 1,
        max_len: int = 2048,
        progress: Callable[[str], None] = lambda message: None,
        **options: Any,
    ) -> "Engine":
        """
        Load a target (and a draft model named by the proposer) and make an engine, if the memory that it needs is there.

        Parameters
        ----------
        target : str
            "smollm2-135m-instruct", a folder with safetensors, a .gguf file, or a hub name.
        dtype : {"bfloat16", "float32", "float64"}
        progress : callable
            Gets one line for each slow step.
        num_speculative_tokens, max_batch, max_len, **options
            As for `Engine`.

        Raises
        ------
        InputError, ModelError
            A value is out of its range, a model cannot be loaded or does not fit in memory, or its token ids are not what the
            proposer needs.
        """
        require_sizes(num_speculative_tokens, max_batch, max_len)
        _require_rules(options.get("numerics", "bitwise"), options.get("verification", "rejection"))
        if proposer is not None:
            require_proposer(proposer)
        sizes: dict[str, Any] = {
            "num_speculative_tokens": num_speculative_tokens,
            "max_batch": max_batch,
            "max_len": max_len,
        }
        drafts = [
            (load_empty(part.source, dtype=dtype, progress=progress), part.stretch)
            for part in _draft_models(proposer)
            if isinstance(part.source, str)
        ]
        names = [part.source for part in _draft_models(proposer) if isinstance(part.source, str)]
        empty = load_empty(target, dtype=dtype, progress=progress)
        plan_memory(empty, drafts, device=device, **sizes).require_fit(target)
        model, tokenizer = load_model(target, dtype=dtype, device=device, progress=progress)
        pack_linears(model)

        def load_with_tokenizer(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
            draft, draft_tokenizer = load_model(name, dtype=dtype, device=device, progress=progress)
            pack_linears(draft)
            return draft, draft_tokenizer

        def load_draft(name: str) -> PreTrainedModel:
            draft, draft_tokenizer = load_with_tokenizer(name)
            difference = tokenizers_differ(tokenizer, draft_tokenizer)
            if difference:
                raise ModelError(
                    f"draft '{name}' has another tokenizer than '{target}': {difference}; "
                    "use CrossTokenizer with this draft, a draft with the target's tokenizer, or prompt lookup"
                )
            return draft

        for part in _draft_models(proposer):
            if isinstance(part, CrossTokenizer):
                part.load(load_with_tokenizer)
            else:
                part.load(load_draft)
        progress("measuring which pass shapes agree bit for bit")
        engine = cls(model, tokenizer, proposer=proposer, **sizes, **options)
        engine.model_files = {
            "target": hash_model(target, progress),
            "drafts": [hash_model(name, progress) for name in names],
        }
        return engine

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do, and the claim that its load-time self-test supports."""
        measured = self.shape_class
        basis = (
            f"load-time self-test on this machine: {len(measured.agree)} pass shapes equal bit for bit "
            f"({', '.join(measured.agree)}), {measured.threads} threads"
            + (f"; but {measured.reason}" if measured.reason else "")
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
            replaceable_rule=True,
            num_speculative_tokens=self.num_speculative_tokens if self.proposer else None,
            details={
                "shape_class": measured.describe(),
                "dtype": str(self._target.dtype).removeprefix("torch."),
                "device": str(self._target.device),
                "packed_weights": any(isinstance(module, Packed) for module in self._target.model.modules()),
                "attention": self._target.model.config._attn_implementation,
                "model": self.model_files,
                "runtime": describe_runtime(self._target.device),
            },
            score_passes=True,
            control_arms=("own draft", "float32") if self._target.dtype in HALF else ("own draft",),
        )

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """See `EngineProtocol.score`: the plain model over the whole sequences, no cache, no slots."""
        return teacher_forced_logits(self._target.model, prompt_token_ids, token_ids)

    def sibling(self, *, max_batch: int, max_len: int, accept: WrapRule | None = None) -> "Engine":
        """See `EngineProtocol.sibling`; its pass shapes are measured anew."""
        return self._like(max_batch=max_batch, max_len=max_len, accept=accept)

    def with_speculation(self, num_speculative_tokens: int, proposer: Proposer | None = None) -> "Engine":
        """Return an engine on the same weights with another K, and with another proposer if one is given."""
        require_sizes(num_speculative_tokens, self._target.num_slots, self.max_len)
        return self._like(
            proposer=proposer,
            num_speculative_tokens=num_speculative_tokens,
            max_batch=self._target.num_slots,
            max_len=self.max_len,
        )

    def with_own_draft(self, max_len: int) -> "Engine":
        """Return an engine whose draft model is its own target: greedy, every drafted token must be accepted."""
        return self._like(proposer=DraftModel(self._target.model), max_len=min(max_len, self.max_len))

    def control_arm(self, name: ControlArm) -> "Engine":
        """See `EngineProtocol.control_arm`; the draft stays in its own dtype."""
        if name == "own draft":
            return self.with_own_draft(self.max_len)
        return self._like(float32_copy(self._target.model), max_len=self.max_len)

    def _like(
        self,
        model: PreTrainedModel | None = None,
        *,
        proposer: Proposer | None = None,
        num_speculative_tokens: int | None = None,
        max_batch: int = 1,
        max_len: int,
        accept: WrapRule | None = None,
    ) -> "Engine":
        return Engine(
            model or self._target.model,
            self.tokenizer,
            proposer=proposer or copy.deepcopy(self.proposer, {id(self._target): self._target}),
            num_speculative_tokens=num_speculative_tokens or self.num_speculative_tokens,
            max_batch=max_batch,
            max_len=max_len,
            numerics=self.numerics,
            verification=self.verification,
            accept=accept(self._decoder.accept) if accept else self._decoder.accept,
            noise=self._decoder.noise,
            take_back=self._decoder.take_back,
        )

    def memory(self) -> dict[str, int | None]:
        """See `EngineProtocol.memory`; draft parts are None without a draft model."""
        drafts = [part.cached for part in _draft_models(self.proposer)]
        return {
            "target_weights": self._target.weight_bytes,
            "target_cache": self._target.store.num_bytes,
            "draft_weights": sum(draft.weight_bytes for draft in drafts) if drafts else None,
            "draft_cache": sum(draft.store.num_bytes for draft in drafts) if drafts else None,
        }

    def close(self) -> None:
        """Drop the models and their stores; the engine is of no use then."""
        for name in ("_decoder", "_target"):
            self.__dict__.pop(name, None)
        self.proposer = None


def _require_rules(numerics: str, verification: str) -> None:
    if numerics not in ("bitwise", "fast"):
        raise InputError(f"numerics = {numerics!r}: allowed 'bitwise' or 'fast'")
    if verification not in VERIFICATIONS:
        raise InputError(f"verification = {verification!r}: allowed 'rejection' or 'coupled'")


def _require_loaded(model: object, tokenizer: object) -> None:
    if not hasattr(model, "config"):
        raise ModelError(
            f"the model is a {type(model).__name__}; allowed is a transformers model in memory: names and paths go to "
            "Engine.from_pretrained"
        )
    if not hasattr(tokenizer, "decode"):
        raise ModelError(f"the tokenizer is a {type(tokenizer).__name__}; give the model's transformers tokenizer")


def _draft_models(proposer: Proposer | None) -> list[DraftModel | CrossTokenizer]:
    """Return those in a proposer; one that is made of others, as `FirstOf`, names them in ``proposers``."""
    if isinstance(proposer, DraftModel | CrossTokenizer):
        return [proposer]
    return [draft for part in getattr(proposer, "proposers", ()) for draft in _draft_models(part)]
