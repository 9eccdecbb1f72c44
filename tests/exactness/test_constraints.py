"""Under a regex or a JSON schema both arms give the judge's tokens or law; a listed language, or a fresh matcher, judges."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from scipy.stats import chisquare

from draftproof import Completion, Engine, SamplingParams
from draftproof.decoding.proposers.base import Proposal
from draftproof.engines.constraint import Constraint, Constraints
from draftproof.engines.hf import HfEngine
from draftproof.engines.scripted import ScriptedEngine
from draftproof.errors import InputError
from draftproof.proposers import DraftModel, EarlyExit, PromptLookup
from draftproof.sampling.adjust import Prefix
from draftproof.sampling.law import token_law
from support.grammars import CASES, EOS, PIECES, REGEX, REGEX_TEXTS, SCHEMA, SPECIAL, Listed, spelling
from support.oracles import judged
from support.toy_engines import noisy_copy, numbered_words
from support.toy_models import VOCAB, Scripted, tiny_llama

K = 4
PROMPTS = [[1, 2, 22, 6, 7, 1, 2, 22, 6, 7, 1], [28, 1, 29, 7, 28, 1, 29, 7], [3, 3, 3]]
SAMPLINGS: list[dict[str, float]] = [{"temperature": 0.0}, {"temperature": 1.4, "top_k": 3}]


def toy_engine(proposer=None, **options) -> Engine:
    options = {"num_speculative_tokens": K, "max_len": 160, "max_batch": 3, "verification": "coupled", **options}
    return Engine(tiny(), spelling(), proposer=proposer, **options)


def tiny():
    model = tiny_llama()
    model.generation_config.eos_token_id = EOS
    return model


def asked(max_tokens: int = 24, **options) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **options})


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(PIECES[token_id] for token_id in token_ids if token_id not in (EOS, SPECIAL))


def toy_proposers():
    wrong = Scripted(lambda row, limit: [(7 * row.token_ids[-1] + step) % VOCAB for step in range(limit)])
    return [None, PromptLookup(1, 3), DraftModel(noisy_copy(tiny_llama())), EarlyExit(1), wrong]


def mask_of(constraint: Constraint, prompt: Sequence[int], generated: Sequence[int]) -> set[int]:
    scores = constraint(torch.tensor([[*prompt, *generated]]), torch.zeros(1, VOCAB))
    return set(scores.isfinite()[0].nonzero()[:, 0].tolist())


def constraint_of(num_prompt: int = 2, ends: frozenset[int] = frozenset({EOS}), **wanted) -> Constraint:
    (constraint,) = Constraints(spelling(), VOCAB, frozenset({EOS})).of(SamplingParams(**wanted), num_prompt, ends)
    return constraint


@pytest.mark.parametrize("name", CASES)
def test_the_mask_is_that_of_the_listed_language_wherever_the_matcher_came_from(name: str) -> None:
    wanted, texts = CASES[name]
    constraint, listed, draw = constraint_of(**wanted), Listed(texts, 2), random.Random(1)
    generated: list[int] = []
    sizes = Counter[str]()
    for _ in range(4000):
        allowed = listed.allowed(generated)
        assert mask_of(constraint, [28, 1], generated) == allowed
        sizes["dead" if not allowed else "complete" if EOS in allowed else "open"] += 1
        if generated and (not allowed or draw.random() < 0.3):
            generated = generated[: draw.randrange(len(generated))]
        elif draw.random() < 0.15:
            generated = [*generated, draw.randrange(VOCAB)]
        else:
            generated = [*generated, draw.choice(sorted(allowed))]
    assert min(sizes[kind] for kind in ("dead", "complete", "open")) > 40


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_both_arms_give_the_judges_tokens_with_every_draft_and_in_a_mixed_batch(sampling: dict[str, float]) -> None:
    model = tiny()
    requests, expected = [], []
    for prompt in PROMPTS:
        for wanted, texts in (*CASES.values(), ({}, None)):
            requests.append((prompt, asked(seed=7, **wanted, **sampling)))
            processors = [] if texts is None else [Listed(texts, len(prompt))]
            judge = {"processors": processors, "sampling": sampling, "seed": 7, "eos": frozenset({EOS})}
            expected.append(judged(model, prompt, 24, **judge))
    prompts, params = [prompt for prompt, _ in requests], [item for _, item in requests]
    accepted = Counter[str]()
    for proposer in toy_proposers():
        engine = toy_engine(proposer)
        for speculate in (False, True):
            done = engine.generate(prompts, params, speculate=speculate)
            assert [list(item.token_ids) for item in done] == expected
            for item, (_, wanted) in zip(done, requests, strict=True):
                if wanted.regex:
                    assert re.fullmatch(wanted.regex, item.text) and item.finish_reason == "stop"
                if wanted.json_schema:
                    assert json.loads(item.text)["a"] in (1, 12, "ab") and item.finish_reason == "stop"
                accepted[type(proposer).__name__] += sum(each.num_accepted for each in item.rounds)
    assert accepted["NoneType"] == 0 and accepted["DraftModel"] > 50 and accepted["PromptLookup"] > 0


def test_the_completions_of_one_prompt_share_a_grammar_and_keep_apart() -> None:
    model, prompt = tiny(), PROMPTS[0]
    engine = toy_engine(DraftModel(noisy_copy(model)))
    params = asked(regex=REGEX, temperature=1.3, seed=3, n=2)
    for speculate in (True, False):
        done = engine.generate([prompt, prompt], params, speculate=speculate)
        for index, item in enumerate(done):
            judge = {"sampling": {"temperature": 1.3}, "seed": 3, "sample": index % 2, "eos": frozenset({EOS})}
            assert list(item.token_ids) == judged(
                model, prompt, 24, processors=[Listed(REGEX_TEXTS, len(prompt))], **judge
            )
        assert done[0].token_ids != done[1].token_ids
    kept = engine._constraints._compiled.cache_info()
    assert (kept.misses, kept.currsize) == (1, 1)


def law_of_texts(model, prompt: Sequence[int], texts: Sequence[str]) -> dict[tuple[int, ...], float]:
    """Enumerate: the plain model's law, restricted to the listed language, of each whole output."""
    listed, law = Listed(texts, len(prompt)), dict[tuple[int, ...], float]()

    def go(generated: tuple[int, ...], weight: float) -> None:
        if generated and generated[-1] == EOS:
            law[generated] = weight
            return
        ids = torch.tensor([[*prompt, *generated]])
        with torch.inference_mode():
            probs = listed(ids, model(input_ids=ids, use_cache=False).logits[:, -1])[0].softmax(-1)
        for token_id in probs.nonzero()[:, 0].tolist():
            go((*generated, token_id), weight * probs[token_id].item())

    go((), 1.0)
    return law


def test_sampled_outputs_have_the_targets_law_under_the_constraint() -> None:
    model, prompt = tiny(), PROMPTS[0]
    law = law_of_texts(model, prompt, ["ab", "abc", "ab,1", "ab,12", "cd"])
    assert sum(law.values()) == pytest.approx(1) and len(law) == 13
    engine = toy_engine(EarlyExit(1), verification="rejection", max_batch=32)
    count = 300
    params = [asked(8, temperature=1.0, regex="ab(c|,1|,12)?|cd", seed=seed) for seed in range(count)]
    done = engine.generate([prompt] * count, params)
    seen = Counter(item.token_ids for item in done)
    assert set(seen) <= set(law)
    likely = [tokens for tokens in law if law[tokens] * count >= 5]
    observed = np.array([*(seen[tokens] for tokens in likely), 0])
    shares = np.array([*(law[tokens] for tokens in likely), 0])
    observed[-1], shares[-1] = count - observed.sum(), 1 - shares.sum()
    assert len(likely) >= 4
    assert chisquare(observed, count * shares).pvalue > 1e-3
    accepted = sum(each.num_accepted for item in done for each in item.rounds)
    refused = sum(each.num_proposed > each.num_accepted for item in done for each in item.rounds)
    assert accepted > 50 and refused > 50


@pytest.mark.parametrize("name", CASES)
def test_the_law_at_each_place_of_a_block_is_the_softmax_of_what_may_follow(name: str) -> None:
    wanted, texts = CASES[name]
    constraint, listed, draw = constraint_of(**wanted), Listed(texts, 2), random.Random(2)
    params, generator = SamplingParams(temperature=0.7), torch.Generator().manual_seed(3)
    for _ in range(60):
        path: list[int] = []
        for _ in range(draw.randrange(1, 12)):
            path.append(draw.choice(sorted(listed.allowed(path)) or [EOS]))
        if draw.random() < 0.3:
            path[-1] = draw.randrange(VOCAB)
        cut = draw.randrange(len(path))
        if not listed.allowed(path[:cut]):
            continue
        logits = torch.randn(1, len(path) - cut + 1, VOCAB, dtype=torch.float64, generator=generator)
        prefix = Prefix(token_ids=[28, 1, *path[:cut]], num_prompt=2, draft=path[cut:], processors=(constraint,))
        law = token_law(logits, [params], [prefix])[0]
        for place in range(len(law)):
            kept = sorted(listed.allowed(path[: cut + place]))
            expected = torch.zeros(VOCAB, dtype=torch.float64)
            expected[kept] = (logits[0, place, kept] / 0.7).softmax(-1)
            torch.testing.assert_close(law[place], expected, rtol=0, atol=1e-14)


class Spy:
    """A proposer that remembers how sure its draft was of each drafted token."""

    def __init__(self, inner) -> None:
        self.inner, self.tokens = inner, list[tuple[list[int], list[int]]]()

    def bind(self, context) -> None:
        self.inner.bind(context)

    def propose(self, rows, limits) -> Proposal:
        proposal = self.inner.propose(rows, limits)
        for row, ids, count in zip(rows, proposal.token_ids.tolist(), proposal.num_tokens.tolist(), strict=True):
            self.tokens.append((row.generated, ids[:count]))
        return proposal

    def release(self, slot: int) -> None:
        self.inner.release(slot)


def test_a_draft_model_drafts_only_what_the_constraint_allows() -> None:
    spy = Spy(DraftModel(tiny_llama(seed=5)))
    done = toy_engine(spy).generate(PROMPTS, asked(regex=REGEX, temperature=1.0))
    listed = Listed(REGEX_TEXTS, 0)
    assert all(item.finish_reason == "stop" for item in done)
    assert sum(len(draft) for _, draft in spy.tokens) > 5
    for generated, draft in spy.tokens:
        for place, token_id in enumerate(draft):
            assert token_id in listed.allowed([*generated, *draft[:place]])


@pytest.mark.parametrize("speculate", [False, True])
def test_where_the_request_may_end(speculate: bool) -> None:
    engine = toy_engine(PromptLookup(1, 3))

    def one(**options):
        return engine.generate([PROMPTS[0]], asked(**options), speculate=speculate)[0]

    # complete, and it may not end: an error that says so, with the text that it has
    for options in ({"ignore_eos": True}, {"min_tokens": 20}):
        stuck = one(regex="ab(,12)?", **options)
        assert stuck.finish_reason == "error" and "nor may it end here" in stuck.error
        assert stuck.text in ("ab", "ab,12") and EOS not in stuck.token_ids
    # a minimum that the grammar has room for, and a grammar without an end
    longer = one(regex="[ab]+", min_tokens=12, max_tokens=40)
    assert len(longer.token_ids) >= 12 and re.fullmatch("[ab]+", longer.text)
    endless = one(regex="[ab]+", ignore_eos=True, max_tokens=15)
    assert endless.finish_reason == "length" and len(endless.token_ids) == 15
    assert re.fullmatch("[ab]+", endless.text)
    # a special stop token is an end like EOS; one that is text must fit into the text, and cuts it
    special = one(regex="ab", ignore_eos=True, stop_token_ids=(SPECIAL,))
    assert (special.token_ids[-1], special.finish_reason, special.text) == (SPECIAL, "stop", "ab")
    cut = one(regex="abd{9}e", stop_token_ids=(PIECES.index("d"), PIECES.index("9")))
    assert (text_of(cut.token_ids), cut.finish_reason) == ("abd", "stop")
    assert one(regex="abd{9}e", stop=("dd",)).text == "ab"
    assert one(regex="d{9}", max_tokens=5).text == "ddddd"


def test_a_users_processor_cannot_let_through_what_the_constraint_forbids() -> None:
    def rewrites(input_ids, scores):
        return torch.arange(scores.shape[-1], dtype=scores.dtype)[None]

    free, bound = toy_engine().generate(
        [PROMPTS[0]] * 2, [asked(4, logits_processors=(rewrites,)), asked(regex=REGEX, logits_processors=(rewrites,))]
    )
    assert set(free.token_ids) == {VOCAB - 1}
    assert re.fullmatch(REGEX, bound.text)


def test_an_allowed_vocabulary_and_a_constraint_hold_together() -> None:
    allowed = tuple(PIECES.index(piece) for piece in ("</s>", "a", "b", ",", "1"))
    for speculate in (True, False):
        item = toy_engine(PromptLookup()).generate(
            [PROMPTS[0]], asked(regex=REGEX, allowed_token_ids=allowed), speculate=speculate
        )[0]
        assert set(item.token_ids) <= set(allowed) and item.text in REGEX_TEXTS
    (dead,) = toy_engine(PromptLookup()).generate([PROMPTS[0]], asked(regex="cd", allowed_token_ids=allowed))
    assert dead.finish_reason == "error" and "no token is allowed" in dead.error


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"regex": "a("}, r"regex = 'a\(': unclosed group"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": "a\\"}, "last backslash"),
        ({"regex": "z"}, "no text matches"),
        ({"json_schema": {"type": "objekt"}}, "Invalid type: objekt"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json_schema": {"uniqueItems": True, "x-guidance": {"lenient": True}}}, "uniqueItems"),
    ],
)
def test_what_cannot_be_a_constraint_is_refused_before_anything_runs(wanted: dict[str, object], message: str) -> None:
    engine, ended = toy_engine(), list[int]()
    with pytest.raises(InputError, match=message) as caught:
        engine.generate(
            [PROMPTS[0]] * 2, [asked(), asked(**wanted)], on_completion=lambda index, _: ended.append(index)
        )
    assert "\n" not in str(caught.value) and ended == [] and engine.num_unfinished == 0
    assert engine._decoder.rows == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"regex": "a", "json_schema": {}}, "both given; give one"),
        ({"json_schema": "{"}, "not JSON"),
        ({"json_schema": "null"}, "a schema is a JSON object"),
        ({"json_schema": {"a": {1}}}, "not JSON"),
        ({"regex": 5}, "valid string"),
    ],
)
def test_what_is_not_even_one_constraint_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**values)


@pytest.mark.parametrize("wanted", [{"regex": "a"}, {"json_schema": {}}])
def test_an_engine_that_cannot_constrain_refuses_by_name(wanted: dict[str, object]) -> None:
    (name,) = wanted
    model, words = tiny_llama(), numbered_words()
    for engine in (HfEngine(model, spelling()), ScriptedEngine(), Engine(model, words, max_len=64)):
        with pytest.raises(InputError, match=f"{name}.* cannot be honoured"):
            engine.generate([[2, 3]], asked(**wanted))


def test_a_schema_may_be_text() -> None:
    assert SamplingParams(json_schema=json.dumps(SCHEMA)) == SamplingParams(json_schema=SCHEMA)


class Fresh:
    """As transformers' LogitsProcessor: a new matcher for every position, and the ends as the library gives them."""

    def __init__(self, words: LLTokenizer, rule: str, num_prompt: int) -> None:
        self.words, self.num_prompt = words, num_prompt
        self.grammar = '%llguidance {"no_forcing": true}\nstart: ' + rule

    def __call__(self, input_ids, scores):
        matcher = LLMatcher(self.words, self.grammar)
        for token_id in input_ids[0, self.num_prompt :].tolist():
            assert matcher.consume_token(token_id)
        allowed = torch.tensor(list(matcher.compute_logit_bias())) > 0
        return scores.masked_fill(~allowed[None], -torch.inf)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "fields": {"type": "array", "items": {"enum": ["physics", "chemistry", "music"]}, "maxItems": 1},
    },
    "required": ["name", "born", "fields"],
    "additionalProperties": False,
}
DATE = r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])( or (19|20)\d\d-\d\d)?"
REAL = [
    (
        'Marie Curie: {"name": "Marie Curie", "born": 1867}. Write it as JSON.',
        {"json_schema": PERSON, "temperature": 0.0},
    ),
    ("When did people first walk on the Moon? Answer with a date.", {"regex": DATE, "temperature": 0.8}),
]
REAL_PROMPTS: list[list[dict[str, str]]] = [[{"role": "user", "content": text}] for text, _ in REAL]
REAL_PARAMS = [asked(70, **wanted) for _, wanted in REAL]
RULES = [f"%json {json.dumps(PERSON)}", f"/{DATE}/"]


def demo_engine(proposer, **options) -> Engine:
    sizes = {"num_speculative_tokens": 4, "max_batch": 2, "max_len": 256}
    return Engine.from_pretrained("smollm2-135m-instruct", proposer=proposer, **sizes, **options)


def both_arms(engine: Engine) -> list[Completion]:
    plain, speculative = (
        engine.generate(REAL_PROMPTS, REAL_PARAMS, speculate=speculate) for speculate in (False, True)
    )
    assert [item.token_ids for item in plain] == [item.token_ids for item in speculative]
    assert [item.finish_reason for item in speculative] == ["stop", "stop"]
    assert set(json.loads(speculative[0].text)) == {"name", "born", "fields"}
    assert re.fullmatch(DATE, speculative[1].text)
    assert sum(each.num_accepted for item in speculative for each in item.rounds) > 0
    return speculative


@pytest.mark.real_model
def test_the_demo_model_gives_the_judges_tokens_in_both_arms() -> None:
    engine = demo_engine(PromptLookup(), dtype="float32", verification="coupled")
    words = from_tokenizer(engine.tokenizer)
    for prompt, params, rule, item in zip(REAL_PROMPTS, REAL_PARAMS, RULES, both_arms(engine), strict=True):
        ids = engine.encode(prompt)
        expected = judged(
            engine._target.model,
            ids,
            70,
            processors=[Fresh(words, rule, len(ids))],
            sampling={"temperature": params.temperature},
            eos=frozenset({engine.tokenizer.eos_token_id}),
        )
        assert list(item.token_ids) == expected


@pytest.mark.real_model
def test_the_demo_model_in_bfloat16_gives_the_same_tokens_in_both_arms() -> None:
    assert len(both_arms(demo_engine(EarlyExit(6), verification="coupled"))) == len(REAL_PROMPTS)
