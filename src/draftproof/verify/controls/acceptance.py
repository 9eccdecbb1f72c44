"""Wrong choices of which drafted tokens stay."""

from collections.abc import Callable

import torch
from torch import Tensor

from draftproof.verify.controls.rule import Block, within_ratio
from draftproof.verify.controls.temper import tempered

COARSE = 256  # steps of a uniform number in bfloat16 near 1


def always(block: Block) -> Tensor:
    """Keep every drafted token."""
    return torch.ones_like(block.token_ids, dtype=torch.bool)


def where_target_is_larger(block: Block) -> Tensor:
    """Keep a token exactly where the target gives it at least the draft's probability: no coin."""
    return block.chosen(block.target_probs) >= block.chosen(block.draft_probs)


def by_product_of_ratios(block: Block) -> Tensor:
    """Hold one coin against the product of the ratios so far, which are not clipped at 1."""
    ratios = block.chosen(block.target_probs) / block.chosen(block.draft_probs).clamp(min=1e-300)
    return block.coins[:, :1] < ratios.cumprod(-1)


def one_place_early(block: Block) -> Tensor:
    """Read the target's law for the place before, but for the first."""
    early = block.target_probs[:, :-1].roll(1, 1)
    early[:, 0] = block.target_probs[:, 0]
    return block.coins * block.chosen(block.draft_probs) < block.chosen(early)


def below_ratio_over(threshold: float) -> Callable[[Block], Tensor]:
    """Accept with probability min(1, ratio / threshold)."""

    def accepts(block: Block) -> Tensor:
        return threshold * block.coins * block.chosen(block.draft_probs) < block.chosen(block.target_probs)

    return accepts


def always_token(token_id: int) -> Callable[[Block], Tensor]:
    """Keep one token, such as the EOS, whatever the coin says."""

    def accepts(block: Block) -> Tensor:
        return within_ratio(block) | (block.token_ids == token_id)

    return accepts


def always_above(probability: float) -> Callable[[Block], Tensor]:
    """Keep also what the target gives at least this probability."""

    def accepts(block: Block) -> Tensor:
        return within_ratio(block) | (block.chosen(block.target_probs) >= probability)

    return accepts


def against_tempered(temperature: float) -> Callable[[Block], Tensor]:
    """Hold the coins against the target at another temperature."""

    def accepts(block: Block) -> Tensor:
        target_probs = tempered(block.target_probs, temperature)
        return block.coins * block.chosen(block.draft_probs) < block.chosen(target_probs)

    return accepts


def by_coarse_coins(block: Block) -> Tensor:
    """Compare with ``<=`` and coins of 8 bits: one token in 256 that the target forbids stays."""
    coins = (block.coins * COARSE).floor() / COARSE
    return coins * block.chosen(block.draft_probs) <= block.chosen(block.target_probs)


def in_bfloat16(block: Block) -> Tensor:
    """Round both probabilities to bfloat16 first."""
    draft, target = (block.chosen(probs).bfloat16().double() for probs in (block.draft_probs, block.target_probs))
    return block.coins * draft < target
