"""Wrong laws after a rejection."""

from collections.abc import Callable

from torch import Tensor

from draftproof.sampling.accept import residual
from draftproof.verify.controls.temper import tempered


def target_itself(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Draw from the target, so that drafted tokens come too often."""
    return target_probs


def absolute_difference(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Draw from the absolute difference, so that tokens the draft likes too much come again."""
    return (target_probs - draft_probs).abs()


def rest_on_last_id(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Do not normalise: a search through the cumulative law that runs off its end gives the last id."""
    left = (target_probs - draft_probs).clamp(min=0.0)
    left[:, -1] += 1.0 - left.sum(-1)
    return left


def neighbours_target(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Take the target of the row before in the batch."""
    return residual(target_probs.roll(1, 0), draft_probs)


def of_tempered(temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Take the target at another temperature."""

    def correction(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return residual(tempered(target_probs, temperature), draft_probs)

    return correction
