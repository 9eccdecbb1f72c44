"""The boundary around a proposer: what is wrong with its answer costs that row its draft for the round, never the request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from draftproof.decoding.batch import Row
from draftproof.decoding.proposers.base import Proposal, Proposer, point_masses
from draftproof.sampling.upload import upload_ids

# rounding of a float64 sum over a vocabulary, with room for a law made in bfloat16 and renormalised
MASS_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A proposal without what was wrong, its tokens as lists, and by row index why a draft was dropped."""

    proposal: Proposal
    drafts: list[list[int]]
    problems: dict[int, str]


def ask(
    proposer: Proposer, rows: Sequence[Row], limits: Sequence[int], vocab_size: int, device: torch.device
) -> Checked:
    """Ask a proposer and check the answer; if it raises for a batch, ask row by row, so that the others keep theirs."""
    held = [list(row.token_ids) for row in rows]
    try:
        return _checked(_answer(proposer, rows, limits, held), limits, vocab_size)
    except Exception as error:  # a proposer is anybody's code
        if len(rows) == 1:
            nothing = point_masses([[]], device)
            return Checked(proposal=nothing, drafts=[[]], problems={0: f"{type(error).__name__}: {error}"})
    single = [ask(proposer, [row], [limit], vocab_size, device) for row, limit in zip(rows, limits, strict=True)]
    return Checked(
        proposal=stack([item.proposal for item in single], vocab_size),
        drafts=[item.drafts[0] for item in single],
        problems={index: item.problems[0] for index, item in enumerate(single) if item.problems},
    )


def _answer(proposer: Proposer, rows: Sequence[Row], limits: Sequence[int], held: Sequence[list[int]]) -> Proposal:
    """Ask, and put back what the proposer wrote into the rows: it would be output that no target has seen."""
    try:
        proposal = proposer.propose(list(rows), list(limits))
    finally:
        changed = [(row, tokens) for row, tokens in zip(rows, held, strict=True) if row.token_ids != tokens]
        for row, tokens in changed:
            row.token_ids[:] = tokens
    if changed:
        raise ValueError("the proposer changed a row's tokens; copy what you want to change")
    return proposal


def _checked(proposal: Proposal, limits: Sequence[int], vocab_size: int) -> Checked:
    rows, width = proposal.token_ids.shape
    if rows != len(limits) or proposal.num_tokens.shape != (rows,):
        raise ValueError(f"a proposal for {rows} rows, {len(limits)} were asked")
    for tensor in (proposal.token_ids, proposal.num_tokens):
        if tensor.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"token ids and counts of dtype {tensor.dtype}, not torch.int64")
    proposal = replace(proposal, token_ids=proposal.token_ids.long(), num_tokens=proposal.num_tokens.long())
    if proposal.probs is not None and proposal.probs.shape != (rows, width, vocab_size):
        raise ValueError(f"probs of shape {tuple(proposal.probs.shape)}, not {(rows, width, vocab_size)}")
    counts, tokens = proposal.num_tokens.tolist(), proposal.token_ids.tolist()
    honest = None
    if proposal.probs is not None and width:
        probs = proposal.probs
        sound = ((probs.sum(-1) - 1).abs() < MASS_TOLERANCE) & (probs >= 0).all(-1)
        inside = proposal.token_ids.clamp(0, vocab_size - 1)
        honest = (sound & (probs.gather(-1, inside[..., None])[..., 0] > 0)).tolist()
    problems: dict[int, str] = {}
    for row, limit in enumerate(limits):
        count, draft = counts[row], tokens[row][: counts[row]]
        if not 0 <= count <= min(limit, width):
            problems[row] = f"{count} tokens proposed, at most {limit} were asked"
        elif any(not 0 <= token_id < vocab_size for token_id in draft):
            problems[row] = f"a token id outside 0..{vocab_size - 1} was proposed"
        elif honest is not None and not all(honest[row][:count]):
            problems[row] = "a token's distribution is not one, or gives it no probability"
    # what follows a row's tokens is padding, and the round has room for the longest draft only
    width = max((counts[row] for row in range(rows) if row not in problems), default=0)
    bad = upload_ids(sorted(problems), proposal.token_ids.device)
    proposal = Proposal(
        token_ids=proposal.token_ids[:, :width].clamp(0, vocab_size - 1).index_fill(0, bad, 0),
        num_tokens=proposal.num_tokens.index_fill(0, bad, 0),
        probs=None if proposal.probs is None else proposal.probs[:, :width].index_fill(0, bad, 0.0),
    )
    drafts = [[] if row in problems else tokens[row][: counts[row]] for row in range(rows)]
    return Checked(proposal=proposal, drafts=drafts, problems=problems)


def stack(proposals: Sequence[Proposal], vocab_size: int) -> Proposal:
    """Put proposals below one another; point masses are spelt out where another row has a distribution."""
    width = max(proposal.token_ids.shape[1] for proposal in proposals)
    soft = any(proposal.probs is not None for proposal in proposals)
    token_ids, probs = [], []
    for proposal in proposals:
        missing = width - proposal.token_ids.shape[1]
        token_ids.append(torch.nn.functional.pad(proposal.token_ids, (0, missing)))
        if soft:
            held = proposal.probs
            if held is None:
                shape = (*proposal.token_ids.shape, vocab_size)
                held = torch.zeros(shape, dtype=torch.float64, device=proposal.token_ids.device)
                held.scatter_(-1, proposal.token_ids[..., None], 1.0)
            probs.append(torch.nn.functional.pad(held, (0, 0, 0, missing)))
    return Proposal(
        token_ids=torch.cat(token_ids),
        num_tokens=torch.cat([proposal.num_tokens for proposal in proposals]),
        probs=torch.cat(probs) if soft else None,
    )
