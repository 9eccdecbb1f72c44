"""Languages small enough to be listed: a tokenizer that spells them, and the judge that knows nothing but the list."""

from collections.abc import Sequence
from itertools import product

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

EOS = 0
PIECES = ("</s>", *'abcde0123456789{}[]:,"', "Ġ", "ab", "abc", "12", "cd", '{"', '":', '"}', "}]")
MERGES = [("a", "b"), ("ab", "c"), ("1", "2"), ("c", "d"), ("{", '"'), ('"', ":"), ('"', "}"), ("}", "]")]
SPECIAL = len(PIECES)
REGEX = "(ab|abc|cd)([,:][12]{1,2}){0,2}"
SIGNS = [f"{sign}{digits}" for sign in ",:" for digits in ("1", "2", "11", "12", "21", "22")]
REGEX_TEXTS = [
    start + "".join(tail)
    for start in ("ab", "abc", "cd")
    for count in range(3)
    for tail in product(SIGNS, repeat=count)
]
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"enum": [1, 12, "ab"]},
        "b": {"type": "array", "items": {"enum": ["ab", "abc"]}, "maxItems": 2},
    },
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
LISTS = ["[]", *("[" + ",".join(items) + "]" for n in (1, 2) for items in product(('"ab"', '"abc"'), repeat=n))]
SCHEMA_TEXTS = [
    f'{{"a":{value}{rest}}}' for value in ("1", "12", '"ab"') for rest in ("", *(f',"b":{items}' for items in LISTS))
]
CASES = {"regex": ({"regex": REGEX}, REGEX_TEXTS), "schema": ({"json_schema": SCHEMA}, SCHEMA_TEXTS)}


def spelling() -> PreTrainedTokenizerFast:
    """Letters, digits, JSON's signs and some pairs of them; token 0 is the EOS and the last one is special too."""
    inner = Tokenizer(BPE({piece: index for index, piece in enumerate(PIECES)}, MERGES))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", extra_special_tokens=["<end>"], clean_up_tokenization_spaces=False
    )


class Listed:
    """
    As transformers' LogitsProcessor. What may follow, from the list of all texts that match.

    A token may follow if some text of the list goes on with it; an end, if the text so far is in the list.
    """

    def __init__(self, texts: Sequence[str], num_prompt: int, ends: Sequence[int] = (EOS,)) -> None:
        self.texts, self.num_prompt, self.ends = set(texts), num_prompt, ends
        self.starts = {text[:size] for text in texts for size in range(len(text) + 1)}

    def allowed(self, generated: Sequence[int]) -> set[int]:
        if any(token_id in self.ends for token_id in generated):
            return set()
        pieces = {index: piece.replace("Ġ", " ") for index, piece in enumerate(PIECES) if index != EOS}
        if not all(token_id in pieces for token_id in generated):
            return set()
        text = "".join(pieces[token_id] for token_id in generated)
        going = {token_id for token_id, piece in pieces.items() if text + piece in self.starts}
        return going | (set(self.ends) if text in self.texts else set())

    def __call__(self, input_ids, scores):
        kept = sorted(self.allowed(input_ids[0, self.num_prompt :].tolist()))
        result = torch.full_like(scores, -torch.inf)
        result[:, kept] = scores[:, kept]
        return result
