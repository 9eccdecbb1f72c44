"""An engine behind an address: it generates, and everything else that it is asked for fails."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, ProposerContext
from draftproof.decoding.proposers.stepwise import Feed, draw_stepwise
from draftproof.engines.base import Capabilities, EngineProtocol
from draftproof.records import Completion


class OnlyGenerates:
    """What is left of an engine; its batch is fixed, so that its sibling is itself."""

    def __init__(self, inner: EngineProtocol) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, score=False, replaceable_rule=False, reports_rounds=False)

    def generate(self, prompts: Any, params: Any, **options: Any) -> list[Completion]:
        return self.inner.generate(prompts, params, **options)

    def sibling(self, *, max_batch: int, max_len: int, accept: Any = None) -> "OnlyGenerates":
        assert accept is None
        return self


class TurnDraft:
    """A draft that likes its words in turn, and draws as a draft model does."""

    def __init__(self, words: Sequence[int]) -> None:
        self.after = dict(zip(words, [*words[1:], words[0]], strict=True))

    def bind(self, context: ProposerContext) -> None:
        self.context = context

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        def score(feeds: Mapping[int, Feed]) -> torch.Tensor:
            liked = [self.after.get(int(feed[-1]), 0) for feed in feeds.values()]
            return 2.0 * torch.nn.functional.one_hot(torch.tensor(liked), self.context.vocab_size)

        unread = {index: row.token_ids[-1:] for index, row in enumerate(rows) if limits[index]}
        return draw_stepwise(self.context, rows, limits, unread, score, 0.0)

    def release(self, slot: int) -> None:
        """Nothing is kept for a slot."""


def of_first_place(probs: torch.Tensor) -> torch.Tensor:
    """The law that a draft reports if it is stale: at every place that of the first."""
    return probs[:, :1].expand_as(probs)
