"""What a tokenizer's tokens stand for, as exact bytes: by this, tokens of two vocabularies can be compared."""

import json
import re
from collections.abc import Mapping
from typing import Any

from draftproof.errors import ModelError

Piece = bytes | str
"""The bytes of an ordinary token, or the name of a special one; so a special token is never taken for its own spelling."""

# below this share of the smaller vocabulary, bytes and punctuation are all that two tokenizers have in common
LEAST_SHARED = 0.01
SPACE = "\u2581"
FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
# decoders that change nothing about what a token stands for, or only the first space of a text
NEUTRAL = {"Sequence", "Fuse", "Strip", "Replace", "ByteFallback", "Metaspace"}


def token_pieces(tokenizer: Any) -> dict[int, Piece]:
    """
    Return what each token stands for.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Of the kind that the library tokenizers runs: byte-level, sentencepiece-like (a space is U+2581), or whole words.

    Returns
    -------
    dict of token id to bytes or str
        Bytes of an ordinary token, with its leading space; the name of a special one. Ids that no text has are absent.

    Raises
    ------
    ModelError
        The tokenizer is of another kind.
    """
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ModelError(
            f"{type(tokenizer).__name__} does not show what its tokens stand for; give a tokenizer with a tokenizer.json"
        )
    decoders = _decoders(json.loads(inner.decoder.__getstate__())) if inner.decoder is not None else []
    kinds = {decoder["type"] for decoder in decoders}
    if "ByteLevel" in kinds:
        read = _byte_level
    elif "Metaspace" in kinds or any(decoder.get("pattern") == {"String": SPACE} for decoder in decoders):
        read = _sentencepiece_bytes if "ByteFallback" in kinds else _sentencepiece
    elif not kinds:
        read = _word
    else:
        odd = ", ".join(sorted(kinds - NEUTRAL)) or ", ".join(sorted(kinds))
        raise ModelError(
            f"a tokenizer that decodes by {odd} cannot be compared with another; allowed: byte-level, sentencepiece-like "
            "and whole-word tokenizers"
        )
    added = tokenizer.added_tokens_decoder
    pieces: dict[int, Piece] = {}
    for token, token_id in tokenizer.get_vocab().items():
        if token_id in added:
            content = added[token_id].content
            pieces[token_id] = content if added[token_id].special else content.encode()
        elif piece := read(token):
            pieces[token_id] = piece
    return pieces


def shared_tokens(target: Mapping[int, Piece], draft: Mapping[int, Piece]) -> dict[int, int]:
    """
    Return target id to draft id for the pieces that both vocabularies have: one to one.

    Raises
    ------
    ModelError
        They share next to nothing.
    """
    first, second = _by_piece(target), _by_piece(draft)
    shared = {token_id: second[piece] for piece, token_id in first.items() if piece in second}
    smaller = min(len(target), len(draft))
    if len(shared) <= LEAST_SHARED * smaller:
        raise ModelError(
            f"the draft's vocabulary shares {len(shared)} tokens with the target's, of {smaller} in the smaller one; "
            "too few to propose with: use another draft, or prompt lookup"
        )
    return shared


def a_word(pieces: Mapping[int, Piece]) -> int | None:
    """Return the lowest id of a token that is a space and then printable ASCII, to try a tokenizer's ways with."""
    return min(
        (
            token_id
            for token_id, piece in pieces.items()
            if isinstance(piece, bytes) and re.fullmatch(rb" [!-~]+", piece)
        ),
        default=None,
    )


def _by_piece(pieces: Mapping[int, Piece]) -> dict[Piece, int]:
    # of two tokens that are spelt alike, text becomes the later one: byte fallbacks come first, added tokens last
    return {pieces[token_id]: token_id for token_id in sorted(pieces)}


def _decoders(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [state, *(inner for part in state.get("decoders", ()) for inner in _decoders(part))]


def _byte_level(token: str) -> bytes | None:
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        return None


def _sentencepiece(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _sentencepiece_bytes(token: str) -> bytes:
    found = FALLBACK.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else _sentencepiece(token)


def _word(token: str) -> bytes:
    return b" " + token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
