"""
Every error that draftproof raises on purpose.

::

    DraftproofError            exit code 1 unless said otherwise
    |-- InputError             exit code 2: what was given cannot be used
    |   |-- PlanError          a study file
    |   |-- ModelError         a model, a tokenizer, or a pair of them
    |   |-- PromptError        a prompt or a prompt set
    |   |-- ServerError        a server that cannot be reached, started or used
    |   `-- OutputError        a folder or file to write
    |-- RefusedError           exit code of the verdict: a rung that may not be promoted or exported
    |-- ContractError          a proposer breaks a promise that the round relies on
    `-- NumericsError          a model produced values that are not finite

A message is one line: what was wrong, what was got, what is allowed, what to do.
"""


class DraftproofError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class InputError(DraftproofError):
    """Something the user gave cannot be used."""

    exit_code = 2


class PlanError(InputError):
    """A study file is not valid."""


class ModelError(InputError):
    """A model or a tokenizer cannot be used, or two of them do not fit."""


class PromptError(InputError):
    """A prompt cannot be used, or a prompt set is empty."""


class ServerError(InputError):
    """A server cannot be reached, started or used, or two of them do not fit."""


class OutputError(InputError):
    """An output folder or file cannot be written."""


class NumericsError(DraftproofError):
    """A model produced logits that are not finite."""


class ContractError(DraftproofError):
    """A proposer does not do what every proposer owes the round."""


class RefusedError(DraftproofError):
    """A rule stands against a promotion or an export; the exit code is the evidence's verdict's, or that of INCONCLUSIVE."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
