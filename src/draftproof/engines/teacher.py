"""Teacher forcing: the plain model over whole sequences, so that an engine can be judged without its own cache."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel


def teacher_forced_logits(
    model: PreTrainedModel, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]
) -> npt.NDArray[np.float32]:
    """
    Return the raw logits before each token of continuations of one prompt.

    Parameters
    ----------
    prompt_token_ids : sequence of int
    token_ids : sequence of N sequences of equal length T

    Returns
    -------
    ndarray, shape (N, T, V), float32
    """
    prompt = torch.tensor([list(prompt_token_ids)] * len(token_ids), dtype=torch.int64)
    tail = torch.tensor([list(ids) for ids in token_ids], dtype=torch.int64)
    sequences = torch.cat([prompt, tail], dim=1).to(model.device)
    with torch.inference_mode():
        logits = model(input_ids=sequences, use_cache=False, logits_to_keep=tail.shape[1] + 1).logits[:, :-1]
    return cast(npt.NDArray[np.float32], logits.float().cpu().numpy())
