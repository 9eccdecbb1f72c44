"""
A fake engine that ships: the real round around a tabulated target, on a virtual clock. It needs no model and no time.

For trying a study, a policy or a report before the machine is there, and for tests of everything above the engine.
"""

import copy
import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer
from draftproof.engines.base import Capabilities, ControlArm, WrapRule
from draftproof.engines.digest import digest_of
from draftproof.engines.requests import DecoderEngine, require_sizes
from draftproof.engines.script import Script
from draftproof.errors import InputError
from draftproof.sampling.accept import AcceptRule, rejection
from draftproof.sampling.noise import Noise

VOCAB = 4096
KEPT_CONTEXTS = 4096
Logits = npt.NDArray[np.float32]


class Table:
    """The law: a function of the sequence alone."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._base = functools.lru_cache(maxsize=KEPT_CONTEXTS)(self._draw)

    @property
    def digest(self) -> str:
        """SHA-256 of what the law follows from, which stands in for weights."""
        return digest_of([self._script.seed, self._script.spread, self._script.copying])

    def logits(self, token_ids: Sequence[int]) -> Logits:
        """Return the logits after a sequence, shape (V,)."""
        last = token_ids[-1]
        logits = self._base(token_ids[-2] if len(token_ids) > 1 else 0, last).copy()
        for place in range(len(token_ids) - 2, -1, -1):
            if token_ids[place] == last:
                logits[token_ids[place + 1]] += self._script.copying
                break
        return logits

    def _draw(self, before: int, last: int) -> Logits:
        generator = np.random.default_rng((self._script.seed, before, last))
        return np.float32(self._script.spread) * generator.standard_normal(VOCAB, dtype=np.float32)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self, script: Script) -> None:
        self._noise, self._drift = script.noise, script.drift
        self._generator = np.random.default_rng(script.seed)
        self.seconds = 0.0

    def spend(self, ms: float) -> None:
        """Let about ``ms`` pass."""
        slower = 1 + self._drift * self.seconds / 60
        self.seconds += ms / 1e3 * slower * float(np.exp(self._noise * self._generator.standard_normal()))

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds


class ScriptedTarget:
    """See `decoding.target.Target`; a slot is a list of tokens."""

    def __init__(self, script: Script, table: Table, clock: Clock, *, num_slots: int, max_len: int) -> None:
        self.device = torch.device("cpu")
        self.num_slots, self.max_len, self.vocab_size = num_slots, max_len, VOCAB
        self._script, self._table, self._clock = script, table, clock
        self._slots: list[list[int]] = [[] for _ in range(num_slots)]
        self._broken = [False] * num_slots

    @property
    def row_len(self) -> list[int]:
        """Tokens that each slot holds."""
        return [len(slot) for slot in self._slots]

    def key_len(self, length: int) -> int:
        """One view for all lengths."""
        return self.max_len

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        self._slots[slot].extend(token_ids)
        self._clock.spend(self._script.prefill_ms * len(token_ids))

    def fork(self, source: int, slot: int, length: int) -> None:
        """Start a slot with another's first tokens."""
        self._slots[slot] = self._slots[source][:length]

    def score(self, blocks: Mapping[int, Sequence[int]]) -> Tensor:
        """Append and return (rows, positions, V) logits."""
        width = max(map(len, blocks.values()))
        logits = np.zeros((len(blocks), width, VOCAB), dtype=np.float32)
        for row, (slot, block) in enumerate(blocks.items()):
            for place, token_id in enumerate(block):
                self._slots[slot].append(token_id)
                logits[row, place] = self._table.logits(self._slots[slot])
            self._spoil(slot, logits[row], len(block))
        drafted = width - 1
        block_ms = self._script.block_ms + self._script.position_ms * drafted * len(blocks)
        self._clock.spend(block_ms if drafted else self._script.plain_ms)
        return torch.from_numpy(logits)

    def _spoil(self, slot: int, logits: Logits, count: int) -> None:
        if self._script.defect == "block" and count > 1:
            logits[1:count] = np.roll(logits[1:count], 1, axis=-1)
        if self._script.defect == "not-finite" and (count > 1 or self._broken[slot]):
            logits[:count] = np.nan
            self._broken[slot] = count > 1

    def roll_back(self, slot: int, num_tokens: int) -> None:
        """Drop the last tokens."""
        del self._slots[slot][len(self._slots[slot]) - num_tokens :]

    def scrub_tail(self, slot: int) -> None:
        """Nothing is left behind a list."""

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self._slots[slot], self._broken[slot] = [], False


class Paced:
    """A proposer that takes time on the virtual clock: so much for each token, the rows of a batch side by side."""

    def __init__(self, proposer: Proposer, draft_ms: float, clock: Clock) -> None:
        self._proposer, self._draft_ms, self._clock = proposer, draft_ms, clock
        self.bind, self.release = proposer.bind, proposer.release

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Proposal:
        """See `Proposer.propose`."""
        proposal = self._proposer.propose(rows, limits)
        self._clock.spend(self._draft_ms * int(proposal.num_tokens.max()))
        return proposal


class Words:
    """Text as words: each one, with the space before it, is one token; the id is a hash, so that no list is needed."""

    def __init__(self) -> None:
        self._word_of: dict[int, str] = {}

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Return the ids of a text's words."""
        return {"input_ids": [self._id(word) for word in text.split()]}

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **kwargs: Any) -> list[int]:
        """Return the ids of all messages, one after the other."""
        return self(" ".join(message["content"] for message in messages))["input_ids"]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the words; an id that no text had is its number."""
        return " ".join(self._word_of.get(token_id, str(token_id)) for token_id in token_ids)

    def _id(self, word: str) -> int:
        token_id = zlib.crc32(word.encode()) % VOCAB
        self._word_of.setdefault(token_id, word)
        return token_id


class ScriptedEngine(DecoderEngine):
    """
    See `engines.base.EngineProtocol`.

    Parameters
    ----------
    script : Script
    proposer : Proposer or None
    num_speculative_tokens, max_batch, max_len : int
        As for `Engine`.
    accept, noise
        As for `Engine`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        proposer: Proposer | None = None,
        num_speculative_tokens: int = 5,
        max_batch: int = 1,
        max_len: int = 2048,
        accept: AcceptRule = rejection,
        noise: Noise | None = None,
    ) -> None:
        require_sizes(num_speculative_tokens, max_batch, max_len)
        self._script = script or Script()
        self._table = Table(self._script)
        clock = Clock(self._script)
        target = ScriptedTarget(self._script, self._table, clock, num_slots=max_batch, max_len=max_len)
        paced = Paced(proposer, self._script.draft_ms, clock) if proposer and self._script.draft_ms else proposer
        super().__init__(
            target,
            paced,
            num_speculative_tokens,
            Words(),
            vocab_size=VOCAB,
            max_len=max_len,
            eos=frozenset(),
            accept=accept,
            noise=noise,
            clock=clock,
        )
        self._clock = clock
        self.proposer = proposer

    def wait(self, ms: float) -> None:
        """Let virtual time pass."""
        self._clock.seconds += ms / 1e3

    @property
    def capabilities(self) -> Capabilities:
        """What the fake can do."""
        return Capabilities(
            name="scripted",
            claim="bitwise",
            claim_basis="the law is a table, a function of the sequence alone",
            max_batch=self._decoder.target.num_slots,
            max_len=self.max_len,
            reports_rounds=True,
            allowed_token_ids=True,
            score=True,
            replaceable_rule=True,
            num_speculative_tokens=self.num_speculative_tokens if self.proposer else None,
            details={
                "script": asdict(self._script),
                "model": {"target": {"weights": self._table.digest}, "drafts": []},
                "runtime": {"synchronisation": "none: the clock is virtual"},
            },
            score_passes=True,
        )

    def score(self, prompt_token_ids: Sequence[int], token_ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """See `EngineProtocol.score`: read from the table."""
        prompt = list(prompt_token_ids)
        return np.stack(
            [
                np.stack([self._table.logits([*prompt, *tail[:place]]) for place in range(len(tail))])
                for tail in token_ids
            ]
        )

    def control_arm(self, name: ControlArm) -> "ScriptedEngine":
        """
        See `EngineProtocol.control_arm`; a table has none.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(f"control arm '{name}': a table has no model to draft with or to convert")

    def with_speculation(self, num_speculative_tokens: int, proposer: Proposer | None = None) -> "ScriptedEngine":
        """See `Engine.with_speculation`."""
        return self._like(num_speculative_tokens, proposer, self._decoder.target.num_slots, self.max_len)

    def sibling(self, *, max_batch: int, max_len: int, accept: WrapRule | None = None) -> "ScriptedEngine":
        """See `EngineProtocol.sibling`."""
        return self._like(self.num_speculative_tokens, None, max_batch, max_len, accept)

    def _like(
        self,
        num_speculative_tokens: int,
        proposer: Proposer | None,
        max_batch: int,
        max_len: int,
        accept: WrapRule | None = None,
    ) -> "ScriptedEngine":
        return ScriptedEngine(
            self._script,
            proposer=proposer or copy.deepcopy(self.proposer),
            num_speculative_tokens=num_speculative_tokens,
            max_batch=max_batch,
            max_len=max_len,
            accept=accept(self._decoder.accept) if accept else self._decoder.accept,
            noise=self._decoder.noise,
        )

    def memory(self) -> dict[str, int | None]:
        """See `EngineProtocol.memory`; what the script says."""
        script = self._script
        return {
            "target_weights": script.target_bytes,
            "target_cache": 0,
            "draft_weights": script.draft_bytes,
            "draft_cache": 0,
        }

    def close(self) -> None:
        """Nothing is held."""
