"""
The target's law as a server reports it: the log-probabilities of its likeliest tokens, asked for after each visited prefix.

For engines that cannot score. The law is known for few tokens, so these are cells by rank, and all others are one cell;
`verify.sampled` judges them as it judges the target's own pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from draftproof.engines.base import EngineProtocol
from draftproof.errors import InputError
from draftproof.evidence import ControlResult, SampledResult
from draftproof.records import Completion
from draftproof.request import SamplingParams
from draftproof.verify.collect import (
    Advance,
    Context,
    EngineFailed,
    Laws,
    SampledDesign,
    require_answers,
    softmax_of_best,
)
from draftproof.verify.log import Array
from draftproof.verify.sampled import verify_sampled

LEAST = 1e-6  # of the tokens that were not reported: they are rare, not impossible
SHARE_OF_DELTA = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """
    What a server says of a next token.

    Attributes
    ----------
    num_logprobs : int, 1 to 100
        N, the likeliest tokens that it reports.
    mode : {"raw", "processed"}
        Of the model's own logits, or of the law that is sampled. A server's documentation says which; a wrong one is seen
        as a defect, unless the temperature is 1 and nothing is cut.
    cells : int, 2 or more
        m: the m - 1 likeliest tokens of each prefix, and one for the rest.
    decimals : int or None
        To which the log-probabilities are rounded; None where they are not.
    """

    num_logprobs: int = 20
    mode: Literal["raw", "processed"] = "processed"
    cells: int = 8
    decimals: int | None = None

    def error(self, temperature: float) -> float:
        """
        Return how far rounding may put the law off, in total variation.

        An error of e in each logarithm changes each probability by a factor of at most exp(e), and of exp(2 e) if the law is
        normalised again.
        """
        if self.decimals is None:
            return 0.0
        half_unit = 0.5 * 10.0**-self.decimals
        return math.expm1(2.0 * half_unit / (temperature if self.mode == "raw" else 1.0)) / 2.0

    def require(self, design: SampledDesign) -> None:
        """
        See that the law can be known from what is reported.

        Raises
        ------
        InputError
            It cannot; the message says what would do.
        """
        if not 1 <= self.num_logprobs <= 100:
            raise InputError(f"num_logprobs = {self.num_logprobs}: allowed 1 to 100")
        if not 2 <= self.cells <= self.num_logprobs + 1:
            raise InputError(f"cells = {self.cells}: allowed 2 to num_logprobs + 1 = {self.num_logprobs + 1}")
        if self.error(design.temperature) > SHARE_OF_DELTA * design.delta:
            raise InputError(
                f"decimals = {self.decimals}: rounding may put the law off by {self.error(design.temperature):.2g}, allowed is "
                f"{SHARE_OF_DELTA:g} of delta = {design.delta:g}; let the server report more digits"
            )
        known = design.allowed_token_ids is not None or 0 < design.top_k < self.num_logprobs
        if self.mode == "raw" and not known and (design.temperature != 1.0 or design.top_k):
            raise InputError(
                "raw log-probabilities of some tokens do not give the law at another temperature or cut; ask with "
                f"temperature = 1, with top_k below num_logprobs = {self.num_logprobs}, or with allowed_token_ids"
            )


class TopLogprobs:
    """
    Asks the target-only arm for one token after each prefix that is new, and keeps what it said.

    Parameters
    ----------
    reported : Reported

    Notes
    -----
    See `collect.Read`. Raw log-probabilities are restricted to the allowed tokens, divided by the temperature and cut to the
    ``top_k`` best here. Where all tokens that can come were reported, the rest has what is left of the reported ones; else
    the rest has 1 less their sum, at least `LEAST` and the error of rounding. Ranks are by probability, then by id; they are
    known before the token is. Cost: a request of one token for each distinct prefix.
    Held by: tests/verify/test_top_logprobs.py.
    """

    def __init__(self, reported: Reported) -> None:
        self._reported = reported
        self._known: dict[Context, tuple[dict[int, int], Array]] = {}

    def __call__(
        self, worker: EngineProtocol, design: SampledDesign, of_prompt: Sequence[int], completions: Sequence[Completion]
    ) -> Laws:
        """
        See `collect.Read`.

        Raises
        ------
        EngineFailed
            The server did not answer, or not with what is needed.
        """
        prefixes = [
            (prompt, item.token_ids[:at])
            for prompt, item in zip(of_prompt, completions, strict=True)
            for at in range(len(item.token_ids))
        ]
        new = sorted(set(prefixes) - self._known.keys())
        if new:
            self._known.update(zip(new, self._ask(worker, design, new), strict=True))
        rest = self._reported.cells - 1
        tokens = [token_id for item in completions for token_id in item.token_ids]
        return Laws(
            cells=np.array(
                [self._known[prefix][0].get(token, rest) for prefix, token in zip(prefixes, tokens, strict=True)]
            ),
            laws=np.stack([self._known[prefix][1] for prefix in prefixes]),
            other_cell=rest,
        )

    def _ask(
        self, worker: EngineProtocol, design: SampledDesign, prefixes: Sequence[Context]
    ) -> list[tuple[dict[int, int], Array]]:
        params = SamplingParams(
            max_tokens=1,
            temperature=design.temperature,
            top_k=design.top_k,
            seed=design.seed,
            ignore_eos=True,
            allowed_token_ids=design.allowed_token_ids,
            logprobs=self._reported.num_logprobs,
            logprobs_mode=self._reported.mode,
        )
        prompts = [[*design.prompts[prompt], *prefix] for prompt, prefix in prefixes]
        done = worker.generate(prompts, params, speculate=False)
        require_answers(done, design.allowed_token_ids)
        if not all(item.top_logprobs for item in done):
            raise EngineFailed("the engine reports no log-probabilities; use the two-sample check")
        return [self._law(design, item.top_logprobs[0]) for item in done if item.top_logprobs]

    def _law(self, design: SampledDesign, said: dict[int, float]) -> tuple[dict[int, int], Array]:
        """Return the cell of each token that has one of its own, and the law over cells."""
        finite = {token_id: value for token_id, value in said.items() if value > -math.inf}
        complete = len(finite) < self._reported.num_logprobs
        if self._reported.mode == "raw":
            if design.allowed_token_ids is not None:
                missing = set() if complete else set(design.allowed_token_ids) - finite.keys()
                if missing:
                    raise EngineFailed(
                        f"{len(missing)} allowed tokens are not among the {len(finite)} likeliest after some prefix, the "
                        f"first is id {min(missing)}; allow likelier ones, or let the server report processed ones"
                    )
                finite = {token_id: finite[token_id] for token_id in design.allowed_token_ids if token_id in finite}
            if design.allowed_token_ids is not None or design.top_k:
                law = softmax_of_best(np.array(list(finite.values())), design.temperature, design.top_k)
                finite = {token_id: math.log(p) for token_id, p in zip(finite, law, strict=True) if p > 0.0}
                complete = True
        ranked = sorted(finite, key=lambda token_id: (-finite[token_id], token_id))
        own = ranked[: self._reported.cells - 1]
        probs = np.zeros(self._reported.cells)
        probs[: len(own)] = [math.exp(finite[token_id]) for token_id in own]
        beyond = math.fsum(math.exp(finite[token_id]) for token_id in ranked[len(own) :])
        if design.allowed_token_ids is None:
            left = 0.0 if complete else 1.0 - probs.sum() - beyond
            beyond += max(left, LEAST, self._reported.error(design.temperature))
        elif not complete:
            beyond = max(beyond, 1.0 - probs.sum())
        probs[-1] = beyond
        return {token_id: cell for cell, token_id in enumerate(own)}, probs / probs.sum()

    def describe(self, design: SampledDesign) -> dict[str, Any]:
        """Return what to record."""
        return {
            "reported": self._reported.mode,
            "likeliest tokens": self._reported.num_logprobs,
            "cells": self._reported.cells,
            "decimals": self._reported.decimals,
            "rounding puts the law off by at most": self._reported.error(design.temperature),
            "prefixes asked for": len(self._known),
        }


def verify_top_logprobs(
    engine: EngineProtocol, design: SampledDesign, advance: Advance, reported: Reported
) -> tuple[SampledResult, list[ControlResult]]:
    """
    Run `verify_sampled` with the law that a server reports for its likeliest tokens.

    Raises
    ------
    InputError
        The law cannot be known from what is reported; nothing was sent then.
    """
    reported.require(design)
    read = TopLogprobs(reported)
    result, controls = verify_sampled(engine, design, advance, read=read)
    configuration = {**result.configuration, "log-probabilities": read.describe(design)}
    return result.model_copy(update={"method": "top log-probabilities", "configuration": configuration}), controls
