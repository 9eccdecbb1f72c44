"""
How often a round makes the host wait for the device: a fixed number, whatever K and the batch.

Counted on a CPU, where nothing waits: every operation that gives a value, or a shape that depends on values, to the host.
"""

import sys
from collections import Counter
from itertools import product

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from draftproof.decoding.proposers.draft_model import DraftModel
from draftproof.decoding.proposers.early_exit import EarlyExit
from draftproof.decoding.proposers.first_of import FirstOf
from draftproof.decoding.proposers.prompt_lookup import PromptLookup
from draftproof.request import SamplingParams
from draftproof.sampling.coupled import coupled
from draftproof.sampling.draw import draw_shared
from draftproof.sampling.law import token_law
from support.toy_models import Scripted, make_decoder, make_row, tiny_llama

READERS = {"tolist", "cpu", "numpy", "__array__"}
BY_VALUE = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "bincount",
    "equal",
    "repeat_interleave",
}


class Operations(TorchDispatchMode):
    """Operations whose result the host needs: item() and bool() among them, and indexing by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        masked = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in BY_VALUE or masked:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


class Methods(TorchFunctionMode):
    """Methods that read a tensor without an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in READERS:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


ANSWERS = ("draftproof.decoding.proposers.stepwise", "draftproof.decoding.proposers.draft_cache")


class Uploads(TorchFunctionMode):
    """
    Copies to a device for which the host would wait, with all that is queued there: those that are not told not to.

    Left out are a model's own code, which moves what is there already, and a draft's answer, which moves only from another device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        index = args[1] if name in ("__getitem__", "__setitem__") else ()
        if any(isinstance(part, list | tuple) for part in (index if isinstance(index, tuple) else (index,))[:4]):
            self.counts["index that is a list"] += 1
        if name in ("tensor", "as_tensor") and kwargs.get("device") is not None:
            self.counts["tensor made there"] += 1
        caller = sys._getframe(1).f_globals["__name__"]
        elsewhere = any(isinstance(item, torch.device | str) for item in (*args[1:], kwargs.get("device")))
        elsewhere &= not caller.startswith(("transformers.", *ANSWERS))
        if name == "to" and elsewhere and not kwargs.get("non_blocking"):
            self.counts["to"] += 1
        return function(*args, **kwargs)


def uploads_of(work) -> Counter[str]:
    with Uploads() as uploads:
        work()
    return uploads.counts


def syncs_of(work) -> Counter[str]:
    with Operations() as operations, Methods() as methods:
        work()
    return operations.counts + methods.counts


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: x[0].item(), "_local_scalar_dense"),
        (lambda x: bool(x[0] > 0), "_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.numpy(), "numpy"),
        (lambda x: x.cpu(), "cpu"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.unique(), "_unique2"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: x.long().bincount(), "bincount"),
        (lambda x: [float(value) for value in x], "_local_scalar_dense"),
    ],
)
def test_the_counter_sees_what_waits(work, name: str) -> None:
    assert syncs_of(lambda: work(torch.ones(2)))[name] >= 1


# how often, and for whom: the decision is read as 4 lists, a proposal as its counts and ids, and as its honesty where it has a
# law; a draft model notes what it was fed; the first of several is read once for each that is asked
EXPECTED = {
    "target-only": {4},
    "always-something": {6},
    "prompt-lookup": {6},
    "draft-model": {8},
    "early-exit": {7},
    "first-of": {7, 10},
}
PROPOSERS = {
    "target-only": lambda: None,
    "always-something": lambda: Scripted(lambda row, limit: [7] * limit),
    "prompt-lookup": lambda: PromptLookup(1, 3),
    "draft-model": lambda: DraftModel(tiny_llama(1)),
    "early-exit": lambda: EarlyExit(1),
    "first-of": lambda: FirstOf(PromptLookup(1, 3), DraftModel(tiny_llama(1))),
}
SAMPLED = {"temperature": 0.8, "top_k": 20, "min_p": 0.01}
PENALISED = {"temperature": 0.8, "repetition_penalty": 1.1, "frequency_penalty": 0.1, "min_tokens": 80, "eos": {3}}


def counts_of(name: str, options: dict, ks=(1, 3, 5), batches=(1, 2, 4), **parts) -> set[int]:
    """How often the rounds of a full batch read, for every K and batch, after the one in which the requests join."""
    seen = set()
    for k, batch in product(ks, batches):
        decoder = make_decoder(tiny_llama(), PROPOSERS[name](), k=k, slots=batch, **parts)
        for slot in range(batch):
            decoder.submit(make_row([5, 9, 5, 9, 5, 9][slot % 2 :], 90, request_id=slot, seed=slot, **options))
        decoder.step()
        seen |= {syncs_of(decoder.step).total() for _ in range(4)}
        assert len(decoder.rows) == batch
    return seen


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the code would look at a CPU's values because that costs nothing, it does what it does elsewhere."""
    for module in ("sampling.law", "decoding.proposers.stepwise"):
        monkeypatch.setattr(f"draftproof.{module}.reading_is_free", lambda tensor: False)
    monkeypatch.setattr("draftproof.decoding.shapes.POSITIONS", 2)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_a_round_reads_a_fixed_number_of_times(name: str, options: dict) -> None:
    assert counts_of(name, options) <= EXPECTED[name]


@pytest.mark.parametrize(
    "options",
    [{"top_p": 0.9, "temperature": 0.8}, {"allowed_token_ids": tuple(range(40)), "temperature": 0.8}],
    ids=["top-p", "allowed-ids"],
)
def test_so_does_a_draft_under_a_restricted_law(options: dict) -> None:
    assert counts_of("draft-model", options, ks=(1, 5), batches=(1, 4)) == EXPECTED["draft-model"]


def test_so_does_the_coupled_rule() -> None:
    seen = counts_of("draft-model", SAMPLED, ks=(1, 5), batches=(1, 4), accept=coupled, draw=draw_shared)
    assert seen == EXPECTED["draft-model"]


def test_penalties_are_checked_with_one_reading_more() -> None:
    assert counts_of("always-something", PENALISED) == {7}


def test_penalties_of_a_draft_need_no_token_on_the_host() -> None:
    assert counts_of("draft-model", PENALISED, batches=(1, 4)) == {8 + 1}


def test_log_probabilities_are_read_as_three_lists_more() -> None:
    assert counts_of("always-something", {**SAMPLED, "logprobs": 3}) == {9}


def test_a_confidence_stop_waits_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROPOSERS, "unsure", lambda: DraftModel(tiny_llama(1), 0.5))
    assert counts_of("unsure", SAMPLED) == EXPECTED["draft-model"]


HOST_MADE = torch.ones(3)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: HOST_MADE.to(x.device),
        lambda x: torch.tensor([1], device=x.device),
        lambda x: x[[0, 1]],
        lambda x: x.__setitem__([0], 1.0),
        lambda x: x[None][..., [0, 1]],
    ],
    ids=["to", "tensor", "get-list", "set-list", "get-last"],
)
def test_the_counter_sees_copies_that_wait(work) -> None:
    assert uploads_of(lambda: work(torch.ones(2))).total() == 1


@pytest.mark.parametrize("options", [{}, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_nothing_is_put_onto_the_device_in_a_way_that_waits(name: str, options: dict) -> None:
    """Drafts draw one number after the other, and none may wait for the pass before it."""
    decoder = make_decoder(tiny_llama(), PROPOSERS[name](), k=3, slots=2)
    for slot in range(2):
        decoder.submit(make_row([5, 9, 5, 9, 5, 9][slot:], 90, request_id=slot, seed=slot, **options))
    decoder.step()
    assert uploads_of(decoder.step) == {}


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_the_nucleus_is_the_same_where_values_are_not_read(top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 4, 500, generator=torch.Generator().manual_seed(1)) * 3
    logits[0, 0] = 0.0
    params = [SamplingParams(temperature=1.0, top_p=top_p)] * 3
    sorted_whole = token_law(logits, params)
    monkeypatch.undo()
    read = token_law(logits, params)
    assert torch.equal(sorted_whole > 0, read > 0)
    torch.testing.assert_close(sorted_whole, read, rtol=1e-12, atol=0)
