"""
Random set-ups: models with windows, key views with near edges, every proposer and several at once, tokenizers of three kinds.

In each, random requests combine what they may ask for (constraints, stop strings, ends, bans, penalties, several completions,
processors that fail, log-probabilities), come and are cancelled. Each is the judge's, and nothing is left behind.
`make soak` runs 5,000 of them; the tests run some dozens.
"""

import copy
import gc
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, MistralConfig, Qwen2Config

from draftproof import Completion, Engine, SamplingParams
from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.pieces import shared_tokens, token_pieces
from draftproof.proposers import CrossTokenizer, DraftModel, EarlyExit, FirstOf, PromptLookup, Proposer
from support.grammars import CASES, SPECIAL, spelling
from support.requests import judge_request
from support.toy_engines import numbered_words
from support.toy_models import VOCAB, Scripted, tiny_llama
from support.toy_tokenizers import byte_level, sentencepiece, spelt_words

REQUESTS_OF_A_SETUP = 20
LLAMA_LIKE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
WINDOWS = {"head_dim": 8, "sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}
MODELS = {
    "llama": None,
    "mistral": lambda vocab: MistralConfig(vocab_size=vocab, **LLAMA_LIKE, sliding_window=8),
    "gemma": lambda vocab: Gemma3TextConfig(vocab_size=vocab, **LLAMA_LIKE, **WINDOWS),
    "qwen": lambda vocab: Qwen2Config(
        vocab_size=vocab, **LLAMA_LIKE, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "gpt-2": lambda vocab: GPT2Config(
        vocab_size=vocab, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3, bos_token_id=None, eos_token_id=None
    ),
}
# name: (the target's tokenizer, a draft's with another vocabulary, the model's own end, pieces of stop strings)
TOKENIZERS = {
    "words": (numbered_words, lambda: spelt_words(lambda number: number % 4 != 0), 2, ["w05", "3 w", " ", "7 w1", "w"]),
    "spelling": (spelling, lambda: byte_level("ab abc cd a b c"), 0, [*"abcd12:,{}", "ab", '":', "cd1"]),
    "bytes": (byte_level, sentencepiece, 5, ["a", "\ufffd", "e", " t", "z\ufffd", "\u00e9", "re"]),
}  # fmt: skip


def less_likely(input_ids, scores):
    """A processor: every second id, and more so the last token again."""
    scores = scores.clone()
    scores[:, 1::2] -= 0.7
    scores[:, input_ids[0, -1]] -= 1.5
    return scores


def breaks_after(length: int, dead_end: bool):
    def processor(input_ids, scores):
        if input_ids.shape[1] <= length:
            return scores
        if dead_end:
            return torch.full_like(scores, -torch.inf)
        raise RuntimeError("broken processor")

    return processor


class Setup:
    """An engine and the requests that are made of it."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.kind, self.words = dice.choice(list(MODELS)), dice.choice(list(TOKENIZERS))
        make_tokenizer, self._make_other, end, self._stops = TOKENIZERS[self.words]
        self.tokenizer = make_tokenizer()
        # some ids have no text
        self.vocab = max(VOCAB, len(self.tokenizer) + 3)
        self.model = self._model(dice.randrange(5))
        self.model.generation_config.eos_token_id = end
        self.eos = frozenset({end, self.tokenizer.eos_token_id})
        self.slots, self.max_len = dice.choice([1, 2, 3, 5]), dice.choice([24, 48, 90])
        self.engine = Engine(
            self.model,
            self.tokenizer,
            proposer=self._proposer(),
            num_speculative_tokens=dice.choice([1, 2, 3, 4, 6, 9]),
            max_batch=self.slots,
            max_len=self.max_len,
            verification="coupled",
            numerics=dice.choice(["bitwise", "fast"]),
        )
        self.counts = dict.fromkeys(("length", "stop", "error", "accepted"), 0)
        self._prompts: list[list[int]] = []

    def _model(self, seed: int):
        make = MODELS[self.kind]
        if make is None:
            return tiny_llama(seed, vocab=self.vocab)
        torch.manual_seed(seed)
        attention = self.dice.choice(["sdpa", "eager"])
        return AutoModelForCausalLM.from_config(make(self.vocab), attn_implementation=attention).double().eval()

    def _noisy(self, model, scale: float):
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
        return model

    def _crossed(self):
        """A llama that gives shared tokens the target's embeddings, so that it often agrees; else a stranger."""
        other = self._make_other()
        draft = tiny_llama(0, vocab=len(other))
        if self.kind == "llama":
            weights = dict(self.model.named_parameters())
            shared = shared_tokens(token_pieces(self.tokenizer), token_pieces(other))
            with torch.no_grad():
                for name, parameter in draft.named_parameters():
                    if parameter.shape == weights[name].shape:
                        parameter.copy_(weights[name])
                    else:
                        parameter[list(shared.values())] = weights[name][list(shared)]
        return CrossTokenizer(draft, other, self.dice.choice([0.0, 0.2]))

    def _one(self, kind: str) -> Proposer:
        dice, vocab = self.dice, self.vocab
        if kind == "lookup" or (kind == "early" and self.kind == "gpt-2"):
            return PromptLookup(1, dice.choice([2, 3]))
        if kind == "early":
            return EarlyExit(1, dice.choice([0.0, 0.2]))
        if kind == "cross":
            return self._crossed()
        if kind == "wrong":
            factor = dice.randrange(2, 9)
            return Scripted(lambda row, limit: [(factor * row.token_ids[-1] + step) % vocab for step in range(limit)])
        draft = self._noisy(copy.deepcopy(self.model), dice.choice([0.0, 0.02]))
        if kind == "short":
            draft.config.max_position_embeddings = 40
        return DraftModel(draft, dice.choice([0.0, 0.3]))

    def _proposer(self) -> Proposer:
        kinds = self.dice.sample(
            ["lookup", "draft", "cross", "early", "wrong", "short"], self.dice.choice([1, 2, 2, 3])
        )
        parts = [self._one(kind) for kind in kinds]
        return parts[0] if len(parts) == 1 else FirstOf(*parts)

    def request(self, number: int) -> tuple[list[int], SamplingParams, list[str] | None]:
        dice, vocab, asked, texts = self.dice, self.vocab, dict[str, object](), None

        def sometimes(share: float, **options: object) -> None:
            if dice.random() < share:
                asked.update(options)

        if self._prompts and dice.random() < 0.25:
            prompt = dice.choice(self._prompts)
        else:
            prompt = [dice.randrange(vocab) for _ in range(dice.choice([1, 2, 5, 12, 20]))]
            prompt = (prompt + prompt[: dice.randrange(8)] * 2)[: self.max_len - 1]
            self._prompts.append(prompt)
        asked["temperature"] = dice.choice([0.0, 0.0, 0.3, 0.8, 1.3])
        asked["max_tokens"] = most = dice.choice([1, 2, 5, 12, 25, 40])
        asked["seed"] = dice.choice([number, 3, 2**62 + number])
        if self.words == "spelling" and dice.random() < 0.5:
            wanted, texts = dice.choice(list(CASES.values()))
            asked.update(wanted)
        sometimes(0.2, top_k=dice.choice([1, 3, 10]))
        sometimes(0.2, top_p=dice.choice([0.3, 0.8]))
        sometimes(0.1, min_p=0.1)
        sometimes(0.25, repetition_penalty=dice.choice([0.8, 1.3]))
        sometimes(0.2, presence_penalty=dice.choice([-0.5, 1.0]), frequency_penalty=dice.choice([-0.3, 0.6]))
        sometimes(0.2, logit_bias={dice.randrange(vocab): dice.choice([-50.0, 3.0, 6.0]) for _ in range(3)})
        words = tuple(tuple(dice.randrange(vocab) for _ in range(dice.choice([1, 2, 3]))) for _ in range(4))
        sometimes(0.25, bad_words_ids=words)
        sometimes(0.25, min_tokens=dice.randrange(most + 1))
        sometimes(0.4, stop=tuple(dice.choice(self._stops) for _ in range(dice.choice([1, 2]))))
        sometimes(0.3, stop_token_ids=tuple(dice.randrange(vocab) for _ in range(dice.choice([1, 3]))))
        sometimes(0.1, stop_token_ids=(SPECIAL,))
        sometimes(0.4, ignore_eos=True)
        sometimes(0.1, allowed_token_ids=tuple(dice.sample(range(vocab), dice.choice([2, 10, 40]))))
        failing = breaks_after(len(prompt) + dice.randrange(12), dead_end=dice.random() < 0.5)
        sometimes(0.15, logits_processors=(less_likely,))
        sometimes(0.06, logits_processors=(less_likely, failing))
        sometimes(0.4, logprobs=dice.choice([0, 2, 70]), logprobs_mode=dice.choice(["raw", "processed"]))
        sometimes(0.1, n=3)
        return prompt, SamplingParams(**asked), texts

    def check(self, request: tuple[list[int], SamplingParams, list[str] | None], sample: int, got: Completion) -> None:
        prompt, params, texts = request

        def decode(token_ids) -> str:
            return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

        options = {"sample": sample, "eos": self.eos, "max_len": self.max_len, "texts": texts}
        wanted = judge_request(self.model, decode, prompt, params, **options)
        assert (list(got.token_ids), got.finish_reason) == (wanted.token_ids, wanted.finish_reason)
        assert sum(item.emitted for item in got.rounds) == len(wanted.token_ids)
        if params.logprobs is not None:
            # some of these models normalise in float32 whatever their dtype
            assert list(got.logprobs) == pytest.approx(wanted.logprobs, abs=1e-4)
            assert {len(best) for best in got.top_logprobs} <= {min(params.logprobs, self.vocab)}
        self.counts[got.finish_reason] += 1
        self.counts["accepted"] += sum(item.num_accepted for item in got.rounds)

    def check_nothing_is_left(self) -> None:
        assert self.engine._decoder.rows == [] and sorted(self.engine._decoder._free) == list(range(self.slots))
        stores = [self.engine._target]
        parts = [self.engine.proposer]
        while parts:
            part = parts.pop()
            parts += getattr(part, "proposers", ())
            if hasattr(part, "cached"):
                stores.append(part.cached)
                assert part._cache._held == [[]] * self.slots and not getattr(part, "_renderings", None)
        for cached in stores:
            assert cached.row_len == [0] * self.slots
            for layer in cached.store._slots:
                assert not any(tensor[:, :, : cached.max_len].any() for tensor in layer.tensors())


def test_random_requests_of_random_setups_are_the_judges(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.decoding.shapes.POSITIONS", 4)
    total = dict.fromkeys(("length", "stop", "error", "accepted", "cancelled"), 0)
    for seed in range(max(6, pytestconfig.getoption("--soak-requests") // REQUESTS_OF_A_SETUP // 2)):
        monkeypatch.setattr("draftproof.decoding.model.FIRST_KEY_LEN", (8, 16, 32, 256)[seed % 4])
        setup, running, submitted = Setup(seed), {}, 0
        while submitted < REQUESTS_OF_A_SETUP or setup.engine.num_unfinished:
            while submitted < REQUESTS_OF_A_SETUP and setup.engine.num_unfinished < 8 and setup.dice.random() < 0.8:
                request, speculate = setup.request(submitted), setup.dice.random() < 0.9
                submitted += 1
                if request[1].n == 1:
                    running[setup.engine.submit(request[0], request[1], speculate=speculate)] = request
                    continue
                # beside what runs
                for sample, got in enumerate(setup.engine.generate([request[0]], request[1], speculate=speculate)):
                    setup.check(request, sample, got)
            if running and setup.dice.random() < 0.05:
                victim = setup.dice.choice(list(running))
                setup.engine.cancel(victim)
                del running[victim]
                total["cancelled"] += 1
            for number, got in setup.engine.step():
                setup.check(running.pop(number), 0, got)
        assert not running
        setup.check_nothing_is_left()
        for name, count in setup.counts.items():
            total[name] += count
        del setup
    assert min(total.values()) > 0
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item) is Row]
