"""What transformers generates for a request is what the request says, in both arms."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
)

from draftproof.engines.digest import describe_files
from draftproof.engines.hf import HfEngine
from draftproof.errors import InputError, ModelError, PromptError
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.sampling.accept import rejection
from draftproof.sampling.law import token_law
from support.toy_models import VOCAB, first_layers, judge, tiny_llama
from support.toy_tokenizers import byte_level

PROMPT = [3, 4, 5, 3, 4, 5, 3, 4]
EOS = 1
K = 4
LENGTH = 60
BOTH_ARMS = pytest.mark.parametrize("speculate", [False, True], ids=["target-only", "prompt-lookup"])


def word_tokenizer(vocab: int = VOCAB) -> PreTrainedTokenizerFast:
    """Token i is the word "wi", in two digits, but for <unk> and the EOS."""
    words = {f"w{index:02}": index for index in range(2, vocab)}
    inner = Tokenizer(WordLevel({"<unk>": 0, "</s>": EOS} | words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")


def words(token_ids: list[int]) -> str:
    return " ".join(f"w{token_id:02}" for token_id in token_ids if token_id > EOS)


def model_with_eos(eos: int | list[int] = EOS, seed: int = 0):
    model = tiny_llama(seed)
    model.generation_config = GenerationConfig(eos_token_id=eos)
    return model


def make_engine(model=None, **options) -> HfEngine:
    return HfEngine(
        model or model_with_eos(),
        word_tokenizer(),
        **{"num_speculative_tokens": K, "prompt_lookup_max": 3, "max_len": 256, **options},
    )


def greedy(**options) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": LENGTH, "ignore_eos": True, **options})


def one(engine: HfEngine, params: SamplingParams, speculate: bool, prompt=PROMPT) -> Completion:
    return engine.generate([prompt], params, speculate=speculate)[0]


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return judge(tiny_llama(), PROMPT, LENGTH)


@BOTH_ARMS
@pytest.mark.parametrize("seed", range(4))
def test_greedy_output_is_the_judge_s(seed: int, speculate: bool) -> None:
    expected = judge(tiny_llama(seed), PROMPT, LENGTH)
    completion = one(make_engine(model_with_eos(seed=seed)), greedy(), speculate)
    assert list(completion.token_ids) == expected
    assert completion.finish_reason == "length" and completion.error is None
    assert completion.text == words(expected)
    assert completion.num_prompt_tokens == len(PROMPT)


def test_prompt_lookup_really_speculates_and_does_not_report_rounds() -> None:
    plain, speculative = (one(make_engine(), greedy(), speculate) for speculate in (False, True))
    assert {chunk.num_tokens for chunk in plain.chunks} == {1}
    sizes = [chunk.num_tokens for chunk in speculative.chunks]
    assert min(sizes) == 1 < max(sizes) <= K + 1
    for completion in (plain, speculative):
        assert completion.rounds == () and completion.logprobs is None
    assert plain.speculation is None and speculative.speculation is not None
    assert speculative.speculation.num_accepted_draft_tokens == LENGTH - len(sizes)


def test_the_two_settings_of_prompt_lookup_reach_it() -> None:
    def sizes(**options: int) -> list[int]:
        return [chunk.num_tokens for chunk in one(make_engine(**options), greedy(), True).chunks]

    assert max(sizes(num_speculative_tokens=1)) == 2 < max(sizes(num_speculative_tokens=K))
    # a longer n-gram finds another place than the last token alone
    assert sizes(prompt_lookup_max=1) != sizes(prompt_lookup_max=3)


@BOTH_ARMS
def test_chunks_add_up_and_their_times_go_forward(speculate: bool) -> None:
    seen: list[tuple[int, Completion]] = []
    engine = make_engine()
    began = engine.now_ms()
    completions = engine.generate(
        [PROMPT, PROMPT[1:]], greedy(), speculate=speculate, on_completion=lambda *item: seen.append(item)
    )
    assert seen == list(enumerate(completions))
    times = [chunk.at_ms for completion in completions for chunk in completion.chunks]
    assert times[-1] < engine.now_ms() - began
    assert times[0] > 0 and times == sorted(times)  # of one submission: the second request waited
    for completion in completions:
        assert sum(chunk.num_tokens for chunk in completion.chunks) == len(completion.token_ids) == LENGTH


@BOTH_ARMS
@pytest.mark.parametrize("at", [0, 1, 11, 29, 30, 31, 32])
def test_an_eos_ends_the_output_unless_it_is_ignored(truth: list[int], speculate: bool, at: int) -> None:
    engine = make_engine(model_with_eos(truth[at]))
    stopped = one(engine, greedy(ignore_eos=False), speculate)
    assert list(stopped.token_ids) == truth[: truth.index(truth[at]) + 1]
    assert stopped.finish_reason == "stop"
    ignored = one(engine, greedy(), speculate)
    assert list(ignored.token_ids) == truth and ignored.finish_reason == "length"


@BOTH_ARMS
def test_every_eos_of_the_model_and_the_tokenizer_s_count(truth: list[int], speculate: bool) -> None:
    late, early = truth[22], truth[5]
    assert truth.index(late) > truth.index(early)
    completion = one(make_engine(model_with_eos([late, early])), greedy(ignore_eos=False), speculate)
    assert list(completion.token_ids) == truth[: truth.index(early) + 1]
    engine = make_engine(model_with_eos(late))
    engine.tokenizer.eos_token = f"w{early:02}"
    again = HfEngine(model_with_eos(late), engine.tokenizer)
    assert one(again, greedy(ignore_eos=False), speculate).token_ids == completion.token_ids


@BOTH_ARMS
def test_ignoring_an_eos_leaves_its_probability_alone(speculate: bool) -> None:
    completion = one(make_engine(), greedy(allowed_token_ids=(EOS,), max_tokens=9), speculate)
    assert list(completion.token_ids) == [EOS] * 9


@BOTH_ARMS
@pytest.mark.parametrize("at", range(20, 40))
def test_a_stop_string_ends_the_output_at_the_token_that_completes_it(
    truth: list[int], speculate: bool, at: int
) -> None:
    stop = words(truth[at : at + 2])
    end = next(index for index in range(len(truth)) if truth[index : index + 2] == truth[at : at + 2])
    completion = one(make_engine(), greedy(stop=("never", stop)), speculate)
    assert list(completion.token_ids) == truth[: end + 2]
    assert completion.finish_reason == "stop"
    assert completion.text.rstrip() == words(truth[:end])
    assert sum(chunk.num_tokens for chunk in completion.chunks) == end + 2


def test_a_stop_string_ends_the_output_inside_a_block(truth: list[int]) -> None:
    engine, ends, end = make_engine(), [], 0
    for chunk in one(engine, greedy(), True).chunks:
        ends += range(end + 1, end + chunk.num_tokens)
        end += chunk.num_tokens
    assert len(ends) >= 5
    for end in ends:
        completion = one(engine, greedy(stop=words(truth[:end])), True)
        assert list(completion.token_ids) == truth[:end]
        assert (completion.finish_reason, completion.text) == ("stop", "")
        assert sum(chunk.num_tokens for chunk in completion.chunks) == end


@BOTH_ARMS
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 29, 30, 31, 32, 33])
def test_never_more_than_max_tokens(truth: list[int], speculate: bool, max_tokens: int) -> None:
    completion = one(make_engine(), greedy(max_tokens=max_tokens), speculate)
    assert list(completion.token_ids) == truth[:max_tokens]
    assert completion.finish_reason == "length"


@BOTH_ARMS
@pytest.mark.parametrize("left", [1, 2, 3, 31, 32])
def test_output_ends_at_the_context_limit(truth: list[int], speculate: bool, left: int) -> None:
    completion = one(make_engine(max_len=len(PROMPT) + left), greedy(), speculate)
    assert list(completion.token_ids) == truth[:left]
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("num_prompt", range(20, 28))
def test_a_block_never_leaves_the_positions_that_the_model_has(num_prompt: int) -> None:
    positions = 32
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_positions=positions, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    engine = make_engine(model.double().eval())
    assert engine.capabilities.max_len == positions - K
    completion = one(engine, greedy(), True, [7] * num_prompt)
    assert list(completion.token_ids) == judge(model, [7] * num_prompt, positions - K - num_prompt)


@BOTH_ARMS
def test_only_allowed_ids_are_generated(speculate: bool) -> None:
    allowed = (3, 5, 9, 40)
    engine = make_engine()
    for temperature in (0.0, 1.0, 100.0):
        completion = one(
            engine, greedy(temperature=temperature, allowed_token_ids=allowed, max_tokens=200), speculate, [3, 9] * 4
        )
        assert set(completion.token_ids) <= set(allowed) and len(completion.token_ids) == 200


def test_drafts_are_used_among_allowed_ids_too() -> None:
    """The processor is applied at each row of a block, with that row's own logits."""
    engine, allowed = make_engine(), (3, 4, 5, 9)
    plain, speculative = (one(engine, greedy(allowed_token_ids=allowed), speculate) for speculate in (False, True))
    assert plain.token_ids == speculative.token_ids
    assert max(chunk.num_tokens for chunk in speculative.chunks) > 1


@BOTH_ARMS
def test_a_seed_fixes_the_tokens_and_leaves_the_global_generator_alone(speculate: bool) -> None:
    engine, params = make_engine(), greedy(temperature=1.0, seed=2**63 - 1)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = one(engine, params, speculate)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert one(engine, params, speculate).token_ids == first.token_ids
    assert one(engine, greedy(temperature=1.0, seed=3), speculate).token_ids != first.token_ids


@BOTH_ARMS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_model_ships_with_does_not_reach_a_request(speculate: bool, temperature: float) -> None:
    shipped = {
        "do_sample": True,
        "temperature": 0.1,
        "top_p": 0.2,
        "min_p": 0.5,
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 2,
        "suppress_tokens": list(range(32, VOCAB)),
        "min_new_tokens": 70,
        "max_length": 5,
        "num_beams": 2,
        "eos_token_id": EOS,
    }
    model = tiny_llama()
    model.generation_config = own = GenerationConfig(**shipped)
    before = own.to_dict()
    params = greedy(temperature=temperature)
    assert one(make_engine(model), params, speculate).token_ids == one(make_engine(), params, speculate).token_ids
    assert model.generation_config is own and own.to_dict() == before
    assert not model._forward_hooks


@BOTH_ARMS
def test_top_k_of_zero_keeps_the_whole_vocabulary(speculate: bool) -> None:
    """At this temperature a token beyond the 50 likeliest comes with probability .2: missing all 100 times, 2e-10."""
    engine = make_engine()
    completion = one(engine, greedy(temperature=100.0, max_tokens=100), speculate)
    logits = engine.score(PROMPT, [completion.token_ids])[0]
    ranks = [int((row > row[token_id]).sum()) for row, token_id in zip(logits, completion.token_ids, strict=True)]
    assert max(ranks) >= 50


@BOTH_ARMS
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"temperature": 1.5, "top_k": 3}, id="top-k"),
        pytest.param({"temperature": 2.0, "top_p": 0.7}, id="top-p"),
        pytest.param({"temperature": 3.0}, id="temperature"),
    ],
)
def test_pairs_of_tokens_follow_the_exact_law(speculate: bool, options: dict[str, float]) -> None:
    """
    Two tokens out of four allowed ones, so that a looked-up draft is judged at the first: 16 pairs, 800 draws.

    False alarm 1e-4 per case, seeds fixed; a temperature, top-k or top-p left out is missed with probability below 1e-9.
    """
    allowed, num_draws = (3, 4, 5, 9), 800
    engine = make_engine()
    params = [
        greedy(max_tokens=2, allowed_token_ids=allowed, seed=seed, **{"top_p": 1.0, "top_k": 0, **options})
        for seed in range(num_draws)
    ]
    pairs = list(itertools.product(allowed, repeat=2))
    law = token_law(torch.from_numpy(engine.score(PROMPT, pairs)), [params[0]] * len(pairs)).numpy()
    probs = np.array([law[index, 0, a] * law[index, 1, b] for index, (a, b) in enumerate(pairs)])
    assert probs.sum() == pytest.approx(1.0, abs=1e-6)
    completions = engine.generate([PROMPT] * num_draws, params, speculate=speculate)
    counts = Counter(completion.token_ids for completion in completions)
    assert any(len(completion.chunks) == 1 for completion in completions) == speculate
    observed = np.array([counts[pair] for pair in pairs])
    assert not observed[probs == 0].any() and observed.sum() == num_draws
    kept = num_draws * probs >= 5
    cells, expected = observed[kept], num_draws * probs[kept]
    if not kept.all():
        cells = np.append(cells, num_draws - cells.sum())
        expected = np.append(expected, num_draws - expected.sum())
        if expected[-1] < 5:
            cells, expected = (np.append(part[:-2], part[-2:].sum()) for part in (cells, expected))
    assert chisquare(cells, expected).pvalue > 1e-4


def test_text_chat_and_ids_become_the_same_prompt() -> None:
    engine = make_engine()
    engine.tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }} {% endfor %}{% if add_generation_prompt %}w05{% endif %}"
    )
    assert engine.encode("w03 w04 w05") == [3, 4, 5]
    assert engine.encode([{"role": "user", "content": "w03 w04"}]) == [3, 4, 5]
    assert engine.encode((3, 4, 5)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param("", "has no tokens", id="empty-text"),
        pytest.param([], "has no tokens", id="no-ids"),
        pytest.param([3, VOCAB], "an id outside 0..63", id="id-too-large"),
        pytest.param([-1], "an id outside 0..63", id="id-below-zero"),
        pytest.param([3] * 256, "has 256 tokens and the context limit is 256", id="too-long"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused_before_anything_runs(prompt: object, message: str) -> None:
    ran: list[int] = []
    with pytest.raises(PromptError, match=message):
        make_engine().generate([PROMPT, prompt], greedy(), on_completion=lambda index, _: ran.append(index))
    assert ran == []


def test_other_input_that_cannot_be_used_is_refused() -> None:
    engine = make_engine()
    with pytest.raises(PromptError, match="one string"):
        engine.generate("w03", greedy())
    with pytest.raises(InputError, match="1 sampling parameters for 2 prompts"):
        engine.generate([PROMPT, PROMPT], [greedy()])
    with pytest.raises(InputError, match=r"holds 64; the model's vocabulary is 0\.\.63"):
        engine.generate([PROMPT], greedy(allowed_token_ids=(3, 64)))
    for name, value, least in (("num_speculative_tokens", 0, 1), ("prompt_lookup_max", 0, 1), ("max_len", 1, 2)):
        with pytest.raises(InputError, match=f"{name} = {value}: allowed {least} or more"):
            make_engine(**{name: value})


@pytest.mark.parametrize("asked", [{"min_p": 0.1}, {"n": 2}, {"repetition_penalty": 1.2}, {"logprobs": 1}])
def test_a_parameter_that_transformers_would_not_be_given_is_refused_by_name(asked: dict[str, float]) -> None:
    (name,) = asked
    with pytest.raises(InputError, match=f"{name} cannot be honoured by engine 'transformers'"):
        make_engine().generate([PROMPT], greedy(**asked))


@BOTH_ARMS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_end_their_own_request_only(speculate: bool, temperature: float) -> None:
    """The embedding of one token is NaN, and of the three prompts one has it. Judged by what the others become."""
    model = model_with_eos()
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = torch.nan
    engine = make_engine(model)
    params = greedy(temperature=temperature, max_tokens=6)
    good, bad, again = engine.generate([PROMPT, [*PROMPT, 7, 4], PROMPT], params, speculate=speculate)
    assert (bad.finish_reason, bad.error) == ("error", "the target's logits are not finite")
    assert bad.token_ids == () and bad.chunks == () and bad.text == "" and bad.latency_ms is None
    assert good.token_ids == again.token_ids == one(make_engine(), params, speculate).token_ids
    assert good.finish_reason == again.finish_reason == "length"
    assert not model._forward_hooks


@BOTH_ARMS
def test_a_failure_in_the_middle_keeps_what_was_visible(truth: list[int], speculate: bool) -> None:
    model = model_with_eos()
    passes = itertools.count()

    def fail(*_: object) -> None:
        if next(passes) == 5:
            raise RuntimeError("no memory\n  for this pass")

    model.model.register_forward_pre_hook(fail)
    completion = one(make_engine(model), greedy(), speculate)
    assert (completion.finish_reason, completion.error) == ("error", "no memory for this pass")
    assert list(completion.token_ids) == truth[: len(completion.token_ids)]
    assert len(completion.chunks) == 5 <= len(completion.token_ids)
    assert not model._forward_hooks


def test_a_programming_error_is_not_a_completion() -> None:
    model = model_with_eos()

    def fail(*_: object) -> None:
        raise TypeError("wrong argument")

    model.model.register_forward_pre_hook(fail)
    with pytest.raises(TypeError, match="wrong argument"):
        one(make_engine(model), greedy(), True)


def test_a_model_that_cannot_be_rolled_back_runs_target_only_and_is_refused_by_name_otherwise() -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    engine = make_engine(model)
    assert len(one(engine, greedy(max_tokens=4), False).token_ids) == 4
    with pytest.raises(ModelError, match=r"transformers does not run MambaForCausalLM: .*stateful"):
        one(engine, greedy(max_tokens=4), True)


def test_scores_are_the_plain_model_s_logits() -> None:
    model, tails = model_with_eos(), [[9, 2, 7], [5, 5, 5]]
    scores = make_engine(model).score(PROMPT, tails)
    assert scores.shape == (2, 3, VOCAB) and scores.dtype == np.float32
    for row, tail in zip(scores, tails, strict=True):
        for index in range(3):
            with torch.no_grad():
                expected = model(input_ids=torch.tensor([PROMPT + tail[:index]]), use_cache=False).logits[0, -1]
            np.testing.assert_allclose(row[index], expected.numpy(), rtol=1e-6, atol=1e-6)


def test_a_draft_model_proposes_k_tokens_in_place_of_prompt_lookup(tmp_path, truth: list[int]) -> None:
    target, draft, stranger = (tmp_path / name for name in ("target", "draft", "stranger"))
    model_with_eos().save_pretrained(target)
    for folder, tokenizer in ((target, word_tokenizer()), (draft, word_tokenizer()), (stranger, byte_level())):
        tokenizer.save_pretrained(folder)
    for folder in (draft, stranger):
        first_layers(tiny_llama(), 1).save_pretrained(folder)
    engine = HfEngine.from_pretrained(str(target), draft=str(draft), num_speculative_tokens=3, dtype="float64")
    plain, speculative = (one(engine, greedy(), speculate) for speculate in (False, True))
    assert list(plain.token_ids) == list(speculative.token_ids) == truth
    assert set(plain.pass_widths) == {1} and max(speculative.pass_widths) == 4
    assert len(speculative.pass_widths) == len(speculative.chunks)
    weights = engine.memory()
    assert weights["draft_weights"] is not None and weights["draft_weights"] < weights["target_weights"]
    with pytest.raises(ModelError, match="another tokenizer"):
        HfEngine.from_pretrained(str(target), draft=str(stranger), dtype="float64")


def test_the_engine_says_what_it_can_do(tmp_path) -> None:
    model_with_eos().save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    said: list[str] = []
    engine = HfEngine.from_pretrained(
        str(tmp_path),
        num_speculative_tokens=3,
        prompt_lookup_max=2,
        dtype="float32",
        device="cpu",
        max_len=100,
        progress=said.append,
    )
    assert said == [f"loading {tmp_path} in float32"]
    assert list(one(engine, greedy(), True).token_ids) == judge(tiny_llama(), PROMPT, LENGTH)
    able = engine.capabilities
    assert (able.name, able.claim, able.max_batch, able.max_len) == ("transformers", "up_to_ties", 1, 100)
    assert (able.reports_rounds, able.allowed_token_ids, able.score, able.replaceable_rule) == (
        False,
        True,
        True,
        False,
    )
    assert able.num_speculative_tokens == 3
    assert able.details["dtype"] == "float32" and able.details["device"] == "cpu"
    assert able.details["attention"] == "sdpa" and able.details["prompt_lookup_max"] == 2
    assert able.details["model"] == {"target": describe_files(tmp_path), "drafts": []}
    assert able.details["runtime"]["threads"] == torch.get_num_threads()
    assert type(able.details["torch"]) is type(able.details["transformers"]) is str
    num_bytes = sum(parameter.nbytes for parameter in tiny_llama(dtype=torch.float32).parameters())
    assert engine.memory() == {
        "target_weights": num_bytes,
        "target_cache": None,
        "draft_weights": None,
        "draft_cache": None,
    }
    assert engine.sibling(max_batch=8, max_len=50) is engine
    with pytest.raises(InputError, match="cannot be replaced"):
        engine.sibling(max_batch=8, max_len=50, accept=lambda own: rejection)
    engine.close()
