"""Our own engine around a tiny model: a tokenizer whose words are numbered, and requests that are greedy by default."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from draftproof import Engine, SamplingParams
from support.toy_models import VOCAB, tiny_llama

UNKNOWN, EOS = 0, 1
K = 4
CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}{% if add_generation_prompt %}w05{% endif %}"


def numbered_words(vocab: int = VOCAB) -> PreTrainedTokenizerFast:
    """Token i is the word "wi", in two digits, but for <unk> and the EOS."""
    entries = {"<unk>": UNKNOWN, "</s>": EOS} | {f"w{index:02}": index for index in range(2, vocab)}
    inner = Tokenizer(WordLevel(entries, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")
    tokenizer.chat_template = CHAT
    return tokenizer


def text_of(token_ids: Sequence[int]) -> str:
    """What `numbered_words` decodes."""
    return " ".join(f"w{token_id:02}" for token_id in token_ids if token_id > EOS)


def make_engine(model=None, **options) -> Engine:
    vocab = options.pop("vocab", VOCAB)
    return Engine(
        tiny_llama() if model is None else model,
        numbered_words(vocab),
        **{"num_speculative_tokens": K, "max_len": 160, **options},
    )


def ask(max_tokens: int = 24, **options) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, "ignore_eos": True, **options})


def noisy_copy(model, scale: float = 0.05, dtype: torch.dtype | None = None):
    """A draft that agrees with the target most of the time: its weights plus a little noise."""
    generator = torch.Generator().manual_seed(7)
    draft = tiny_llama(0, dtype or model.dtype, vocab=model.config.vocab_size)
    with torch.no_grad():
        for parameter, source in zip(draft.parameters(), model.parameters(), strict=True):
            noise = torch.randn(source.shape, generator=generator) * scale
            parameter.copy_(source + noise.to(source.dtype))
    return draft
