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
    decode : callable, token ids to text
    end_token_ids : frozenset of int
        EOS, unless it is to be ignored, and the request's stop tokens.
    min_tokens : int
        A stop string before so many generated tokens does not count; end tokens are banned by the law.
    stop : tuple of str
    """

    max_tokens: int
    decode: Decode
    end_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()

    def cut(self, generated: Sequence[int], new: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """
        Return the tokens of a block that stay, and why the request ended with them (None: it goes on).

        An EOS token and the token that completes a stop string stay; what follows them does not.
        """
        kept = list(new[: self.max_tokens - len(generated)])
        reason: FinishReason | None = "length" if len(generated) + len(kept) >= self.max_tokens else None
        for index, token_id in enumerate(kept):
            if token_id in self.end_token_ids:
                kept, reason = kept[: index + 1], "stop"
                break
        if self.stop:
            # token by token: the next token may change how the last one's bytes read
            for end in range(1, len(kept) + 1):
                if self._find([*generated, *kept[:end]]) is not None:
                    return kept[:end], "stop"
        return kept, reason

    def text(self, generated: Sequence[int], *, ended: bool = True) -> str:
        """
        Return the text of all generated tokens, before the first stop string that counts.

        While the request goes on, an end that may become a stop string is held back, and so is a character of which some
        bytes are still to come, so that a stream never shows what the final text lacks.
        """
        text = self.decode(generated)[: self._find(generated)]
        if ended:
            return text
        text = text.rstrip("\ufffd")
        longest = max((len(stop) for stop in self.stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(len(stop) > size and stop.startswith(text[-size:]) for stop in self.stop):
                return text[:-size]
        return text

    def _find(self, generated: Sequence[int]) -> int | None:
        """Return where the first stop string begins that no token below the minimum completes."""
        text = self.decode(generated)
        floor = len(self.decode(generated[: self.min_tokens - 1])) if self.min_tokens > 1 else 0
        found = [text.find(stop, max(0, floor - len(stop) + 1)) for stop in self.stop]
        return min((at for at in found if at >= 0), default=None)
