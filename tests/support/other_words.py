"""A draft whose words are the target's and have other ids, and a model by those ids."""

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from support.toy_engines import numbered_words
from support.toy_models import tiny_llama

ROWS = 70


def other_words() -> PreTrainedTokenizerFast:
    """The words of `numbered_words` and some more, by other ids."""
    entries = {name: at for at, name in enumerate([*(f"w{n:02}" for n in range(ROWS - 1, 1, -1)), "</s>", "<unk>"])}
    inner = Tokenizer(WordLevel(entries, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")


def translated(model: Any) -> Any:
    """A model by the ids of `other_words`; words that it does not know are unlikely."""
    twin = tiny_llama(0, model.dtype, vocab=ROWS)
    mine, other = numbered_words().get_vocab(), other_words().get_vocab()
    rows = {"model.embed_tokens.weight", "lm_head.weight"}
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in rows}
    twin.load_state_dict(state, strict=False)
    with torch.no_grad():
        for name in rows:
            table = twin.get_parameter(name)
            table.zero_()
            for word, token_id in mine.items():
                table[other[word]] = model.get_parameter(name)[token_id]
    return twin
