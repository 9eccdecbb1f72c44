"""Where a request ends. Works on whole blocks of tokens and finds the first end inside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.request import FinishReason

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """
    The end of one request.

    Attributes
    ----------
    max_tokens : int
        Generated tokens at most, the context limit included.
    eos_token_ids : frozenset of int
        Empty when EOS is to be ignored.
    stop : tuple of str
    decode : callable, token ids to text
        Needed only for stop strings.
    """

    max_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    decode: Decode | None = None

    def cut(self, generated: Sequence[int], new: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """
        Return the tokens of a block that stay, and why the request ended with them (None: it goes on).

        An EOS token and the token that completes a stop string stay; what follows them does not.
        """
        kept = list(new[: self.max_tokens - len(generated)])
        reason: FinishReason | None = "length" if len(generated) + len(kept) >= self.max_tokens else None
        for index, token_id in enumerate(kept):
            if token_id in self.eos_token_ids:
                kept, reason = kept[: index + 1], "stop"
                break
        if self.stop and self.decode is not None and self._find(self.decode([*generated, *kept])) is not None:
            for end in range(1, len(kept) + 1):
                if self._find(self.decode([*generated, *kept[:end]])) is not None:
                    return kept[:end], "stop"
        return kept, reason

    def cut_text(self, text: str) -> str:
        """Return the text before the first stop string."""
        at = self._find(text)
        return text if at is None else text[:at]

    def _find(self, text: str) -> int | None:
        found = [at for at in (text.find(stop) for stop in self.stop) if at >= 0]
        return min(found, default=None)
