"""What the draft said is heard as it was said, and each token of a real engine gets the law it was drawn from."""

import numpy as np
import torch

from draftproof.proposers import DraftModel
from draftproof.sampling.accept import Proposal, rejection
from draftproof.sampling.noise import KeyedNoise
from draftproof.verify.collect import SampledDesign, collect
from draftproof.verify.draft_laws import DraftLaws
from draftproof.verify.worker import open_worker
from support.toy_engines import make_engine, noisy_copy
from support.toy_models import tiny_llama

KEYS = [(7, 0), (8, 0)]


def heard(
    laws: DraftLaws, probs: torch.Tensor | None, token_ids: list[list[int]], counts: list[int], first: int
) -> None:
    proposal = Proposal(token_ids=torch.tensor(token_ids), num_tokens=torch.tensor(counts), probs=probs)
    target = torch.full((2, 3, 4), 0.25, dtype=torch.float64)
    given = laws(target, proposal, KEYS, [first, first], KeyedNoise())
    plain = rejection(target, proposal, KEYS, [first, first], KeyedNoise())
    assert torch.equal(given.num_accepted, plain.num_accepted)
    assert torch.equal(given.next_token_ids, plain.next_token_ids)


def test_laws_are_kept_by_request_and_place_and_the_last_word_counts() -> None:
    laws = DraftLaws(rejection, columns=[1, 3])
    probs = torch.arange(16, dtype=torch.float64).reshape(2, 2, 4) / 100
    heard(laws, probs, [[0, 1], [2, 3]], [2, 1], first=0)
    heard(laws, None, [[3, 1], [2, 0]], [1, 1], first=1)
    np.testing.assert_allclose(laws.of((7, 0), [True, True, True], 2), [[0.01, 0.03], [0.0, 1.0], [np.nan, np.nan]])
    np.testing.assert_allclose(laws.of((8, 0), [True, True], 2), [[0.09, 0.11], [0.0, 0.0]])
    assert np.isnan(laws.of((8, 0), [False, False], 2)).all()
    laws.forget()
    assert np.isnan(laws.of((7, 0), [True], 2)).all()


def test_a_drafted_token_of_an_engine_is_given_the_drafts_own_law() -> None:
    """Computed again here from the draft model, on the whole prefix."""
    model = tiny_llama()
    draft = noisy_copy(model, 0.3)
    engine = make_engine(model, proposer=DraftModel(draft), num_speculative_tokens=2, numerics="fast")
    design = SampledDesign(
        prompts=((5, 9, 7), (9, 5, 7, 5, 9)),
        allowed_token_ids=(5, 7, 9),
        temperature=0.7,
        sequences=20,
        control_sequences=1,
        tokens=6,
        batch=4,
        delta=0.1,
        delta_stratum=0.3,
        alpha_fail=1e-3,
        alpha_eq=0.05,
        min_stratum_tokens=1,
        seed=3,
    )
    worker = open_worker(engine, design)
    log = collect(worker.engine, design, 20, 3, lambda steps: None, drafts=worker.drafts)
    assert log.draft_laws is not None
    known = ~np.isnan(log.draft_laws[:, 0])
    assert known.tolist() == [place.startswith("draft") for place in log.strata] and 20 < known.sum() < 120
    assert log.sequences is not None and log.positions is not None
    for at in np.flatnonzero(known)[:40].tolist():
        start = at - int(log.positions[at])
        prompt = design.prompts[int(log.sequences[at]) % 2]
        prefix = [*prompt, *(design.allowed_token_ids[cell] for cell in log.cells[start:at])]
        with torch.no_grad():
            logits = draft(torch.tensor([prefix])).logits[0, -1].double()[list(design.allowed_token_ids)] / 0.7
        np.testing.assert_allclose(log.draft_laws[at], logits.softmax(-1).numpy(), atol=1e-9)
