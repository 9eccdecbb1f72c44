"""Tiny random models, a proposer that is told what to propose, and the judge."""

import copy
from collections.abc import Callable, Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.decoding.batch import Row
from draftproof.decoding.loop import Decoder
from draftproof.decoding.model import CachedModel
from draftproof.decoding.proposers.base import Proposal, ProposerContext, point_masses
from draftproof.decoding.shapes import measure_shapes
from draftproof.decoding.stopping import StopRule
from draftproof.request import SamplingParams
from draftproof.sampling.draw import draw_alone
from draftproof.sampling.noise import KeyedNoise

VOCAB = 64


def tiny_llama(
    seed: int = 0, dtype: torch.dtype = torch.float64, attention: str = "sdpa", vocab: int = VOCAB, **options
):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        attn_implementation=attention,
        **options,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def judge(model, prompt: Sequence[int], count: int) -> list[int]:
    """REF: one token at a time, the whole sequence again each time, no cache."""
    tokens = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def first_layers(model, count: int):
    """A draft made of a target's first layers, its norm and its head."""
    draft = copy.deepcopy(model)
    draft.model.layers = draft.model.layers[:count]
    draft.config.num_hidden_layers = count
    if getattr(draft.config, "layer_types", None):
        draft.config.layer_types = draft.config.layer_types[:count]
    return draft


class Scripted:
    """Proposes what ``script(row, limit)`` returns."""

    def __init__(self, script: Callable[[Row, int], list[int]]) -> None:
        self.script = script

    def bind(self, context: ProposerContext) -> None:
        self.device = context.device

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        return point_masses(
            [self.script(row, limit)[:limit] for row, limit in zip(rows, limits, strict=True)], self.device
        )

    def release(self, slot: int) -> None:
        pass


def make_decoder(model, proposer=None, k: int = 4, slots: int = 1, max_len: int = 128, **parts) -> Decoder:
    target = CachedModel(model, num_slots=slots, max_len=max_len, block=k + 1)
    measure_shapes(target)
    noise = parts.setdefault("noise", KeyedNoise())
    draw = parts.pop("draw", draw_alone)
    tokenizer = parts.pop("tokenizer", None)
    if proposer is not None:
        proposer.bind(
            ProposerContext(
                num_slots=slots,
                max_len=max_len,
                num_speculative_tokens=k,
                vocab_size=target.vocab_size,
                device=model.device,
                noise=noise,
                draw=draw,
                target=target,
                tokenizer=tokenizer,
            )
        )
    return Decoder(target, proposer, k, **parts)


def make_row(prompt: Sequence[int], max_tokens: int = 24, request_id: int = 0, **options) -> Row:
    eos = options.pop("eos", frozenset())
    stop = options.pop("stop", ())
    speculate = options.pop("speculate", True)
    params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **options})
    return Row(
        request_id=request_id,
        token_ids=list(prompt),
        num_prompt=len(prompt),
        params=params,
        stop=StopRule(
            max_tokens=max_tokens, min_tokens=params.min_tokens, end_token_ids=frozenset(eos), stop=stop, decode=letters
        ),
        key=(params.seed, 0),
        speculate=speculate,
        processors=params.logits_processors,
        submitted_ms=0.0,
    )


def letters(token_ids: Sequence[int]) -> str:
    """One character per token, so that a stop string of n characters is n tokens."""
    return "".join(chr(256 + token_id) for token_id in token_ids)


def run(decoder: Decoder, *rows: Row) -> list[list[int]]:
    for row in rows:
        decoder.submit(row)
    decoder.run()
    return [row.generated for row in rows]
