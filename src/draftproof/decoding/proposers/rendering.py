"""A request's committed tokens in the draft's own: decoded to text, encoded again, without starting over each round."""

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.decoding.proposers.pieces import Piece, a_word

# a text is cut before a word once it is this long, in characters; what lies before the cut is encoded for good
LONG_ENOUGH = 256
BEFORE_A_WORD = re.compile(r"(?<=\S) (?=\S)")


class Reader:
    """
    How the draft reads text.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The draft's.
    pieces : mapping of token id to bytes or str
        What its tokens stand for.

    Attributes
    ----------
    start : list of int
        What it puts before every text: its BOS, or nothing.
    special : dict of str to int
        Its special tokens.
    """

    def __init__(self, tokenizer: Any, pieces: Mapping[int, Piece]) -> None:
        self._tokenizer = tokenizer
        bos = tokenizer.bos_token_id
        self.start: list[int] = [bos] if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else []
        self.special = {piece: token_id for token_id, piece in pieces.items() if isinstance(piece, str)}
        self._adds_space = False
        word = a_word(pieces)
        if word is not None:
            spelt = [pieces.get(token_id) for token_id in self.encode(_text(pieces[word]))]
            self._adds_space = b"".join(piece for piece in spelt if isinstance(piece, bytes)).startswith(b"  ")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a piece of text; a space at its front is not doubled."""
        if self._adds_space:
            text = text.removeprefix(" ")
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []


class Rendering:
    """
    One request, as the draft reads it.

    Parameters
    ----------
    pieces : mapping of token id to bytes or str
        What the target's tokens stand for.
    drops_first_space : bool
        Whether the target's tokenizer puts a space before a text and takes it away again.
    reader : Reader

    Notes
    -----
    The result is a function of the tokens alone, however many came at a time. It may be another spelling than the draft's
    tokenizer would give the whole text: special tokens are kept where both vocabularies have them and left out elsewhere, and a
    long text is encoded in pieces, cut before a word. Any spelling is as exact; a good one is accepted more often.
    """

    def __init__(self, pieces: Mapping[int, Piece], drops_first_space: bool, reader: Reader) -> None:
        self._pieces, self._drops_first_space, self._reader = pieces, drops_first_space, reader
        self._num_read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._final = list(reader.start)
        self._open = ""

    def read(self, token_ids: Sequence[int]) -> list[int]:
        """
        Return the draft's tokens for a request's committed ones, of which those of the last call are the beginning.

        Empty while the text ends in half a character, which no draft could complete.
        """
        for token_id in token_ids[self._num_read :]:
            self._num_read += 1
            piece = self._pieces.get(token_id, b"")
            if isinstance(piece, bytes):
                self._append(self._decoder.decode(piece))
            else:
                self._append(self._decoder.decode(b"", final=True))
                self._decoder.reset()
                self._special(piece)
        if self._decoder.getstate()[0]:
            return []
        self._cut()
        return self._final + self._reader.encode(self._open)

    def _append(self, text: str) -> None:
        if self._drops_first_space and text:
            text, self._drops_first_space = text.removeprefix(" "), False
        self._open += text

    def _special(self, name: str) -> None:
        self._cut()
        self._final += self._reader.encode(self._open)
        self._open = ""
        token_id = self._reader.special.get(name)
        # the target's BOS is the draft's
        if token_id is not None and not (self._final == self._reader.start == [token_id]):
            self._final.append(token_id)

    def _cut(self) -> None:
        while (found := BEFORE_A_WORD.search(self._open, LONG_ENOUGH)) is not None:
            self._final += self._reader.encode(self._open[: found.start()])
            self._open = self._open[found.start() :]


def drops_first_space(tokenizer: Any, pieces: Mapping[int, Piece]) -> bool:
    """Whether a tokenizer decodes a word at the front of a text without the space that belongs to the token."""
    word = a_word(pieces)
    return word is not None and not tokenizer.decode([word], clean_up_tokenization_spaces=False).startswith(" ")


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.decode()
