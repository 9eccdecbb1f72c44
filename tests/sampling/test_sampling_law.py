import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from draftproof.request import SamplingParams
from draftproof.sampling.law import token_law


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("top_p", [0.6, 1.0])
def test_the_law_is_that_of_transformers(temperature, top_k, top_p):
    logits = torch.randn(3, 2, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    warped = TemperatureLogitsWarper(temperature)(None, logits.view(6, 20).clone())
    if top_k:
        warped = TopKLogitsWarper(top_k)(None, warped)
    if top_p < 1:
        warped = TopPLogitsWarper(top_p)(None, warped)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    assert torch.allclose(token_law(logits, [params] * 3).view(6, 20), warped.softmax(-1), atol=1e-12)


def test_greedy_takes_the_first_of_the_largest():
    logits = torch.tensor([[[0.0, 2.0, 1.0, 2.0]]])
    assert token_law(logits, [SamplingParams(temperature=0)]).argmax(-1).item() == 1


@pytest.mark.parametrize("temperature", [1e-8, 1e-3, 0.1])
def test_a_tiny_temperature_is_finite(temperature):
    law = token_law(torch.tensor([[[1.0, 30.0, 2.0]]]), [SamplingParams(temperature=temperature)])
    assert law.isfinite().all() and law[0, 0, 1] > 0.999


def test_only_allowed_ids_have_mass_and_rows_keep_their_own_law():
    logits = torch.zeros(2, 1, 6)
    law = token_law(logits, [SamplingParams(allowed_token_ids=(1, 4)), SamplingParams()])
    assert law[0, 0].tolist() == [0, 0.5, 0, 0, 0.5, 0]
    assert torch.allclose(law[1, 0], torch.full((6,), 1 / 6, dtype=torch.float64))
