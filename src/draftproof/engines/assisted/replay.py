"""A continuation scored in passes of given widths, through transformers' own cache, cropped as assisted generation crops it."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache


@torch.no_grad()
def replay(
    model: Any, prompt_token_ids: Sequence[int], token_ids: Sequence[int], passes: Sequence[tuple[int, int]]
) -> Iterator[npt.NDArray[np.float32]]:
    """See `EngineProtocol.score_passes`; the first pass reads the prompt too."""
    sequence, read, kept_so_far = [*prompt_token_ids, *token_ids], 0, len(prompt_token_ids) - 1
    cache = cast(Any, DynamicCache(config=model.config))
    cache.activate_past_recording()
    for width, kept in passes:
        kept_so_far += kept
        block = sequence[read:kept_so_far]
        block += block[-1:] * (width - kept)
        input_ids = torch.tensor([block], device=model.device)
        mask = torch.ones(1, read + len(block), dtype=torch.int64, device=input_ids.device)
        output = model(input_ids, attention_mask=mask, cache=cache, use_cache=True, logits_to_keep=width)
        if width > kept:
            cache.crop(kept - width)
        read = kept_so_far
        yield output.logits[0, :kept].float().cpu().numpy()
