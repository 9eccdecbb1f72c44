"""
Planted defects and lossless variants, each a replacement for one part of the round. Shipped, so that anyone can see them judged.

A defect must be found by the sampled check and a lossless variant must not: so a check shows, in the same run, what it can see.

Examples
--------
Plant one into an engine; its sampled check then says FAIL::

    Engine(model, tokenizer, proposer=draft, accept=DEFECTS["residual of absolute differences"].wrap(rejection))
    Engine(model, tokenizer, proposer=DEFECTS["most likely drafted"].wrap(draft))
"""

from draftproof.verify.controls.control import Control, Parts
from draftproof.verify.controls.request import REQUEST_DEFECTS, hotter
from draftproof.verify.controls.table import DEFECTS, LOSSLESS, RULE_DEFECTS

__all__ = ["DEFECTS", "LOSSLESS", "REQUEST_DEFECTS", "RULE_DEFECTS", "Control", "Parts", "hotter"]
