"""Small tokenizers of the kinds that language models have, with vocabularies that overlap in part."""

from collections.abc import Callable, Sequence

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>"]
MERGED = "the then there red green blue read ready a an and ing reading"


def bpe(
    words: str, space: str, alphabet: Sequence[str], special: Sequence[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and merges that spell each word, with its space, from the left."""
    vocabulary = {token: token_id for token_id, token in enumerate([*special, *dict.fromkeys([*alphabet, space])])}
    merges: list[tuple[str, str]] = []
    for word in words.split():
        whole = space
        for letter in word:
            vocabulary.setdefault(letter, len(vocabulary))
            if whole + letter not in vocabulary:
                merges.append((whole, letter))
                vocabulary[whole + letter] = len(vocabulary)
            whole += letter
    return vocabulary, merges


def byte_level(words: str = MERGED, special: Sequence[str] = ("<|end|>", "<|user|>")) -> PreTrainedTokenizerFast:
    """As GPT-2: any byte is a token, the special tokens come last."""
    vocabulary, merges = bpe(words, "\u0120", sorted(pre_tokenizers.ByteLevel.alphabet()), ())
    inner = Tokenizer(BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=special[0], additional_special_tokens=list(special[1:])
    )


def sentencepiece(words: str = "the theory red yellow green and reading", bos: bool = True) -> PreTrainedTokenizerFast:
    """As Llama 2: a space stands before the text, what is unknown is spelt in bytes, a BOS comes first."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = list("\u2581abcdefghijklmnopqrstuvwxyz.,")
    vocabulary, merges = bpe(words, "\u2581", letters, [*SPECIAL, *fallback])
    inner = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    if bos:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def spelt_words(known: Callable[[int], bool] = lambda number: True, vocab: int = 64) -> PreTrainedTokenizerFast:
    """`numbered_words` as a metaspace tokenizer with other ids: the known words are one token, the others several."""
    space = "\u2581"
    vocabulary, merges = bpe("", space, [*"w0123456789"], SPECIAL)
    parts = [("", "w"), *(("w", str(ten)) for ten in range(10))]
    parts += [(f"w{number // 10}", str(number % 10)) for number in range(vocab - 1, 1, -1) if known(number)]
    for left, right in parts:
        merges.append((space + left, right))
        vocabulary[space + left + right] = len(vocabulary)
    inner = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
