"""The defect that any engine can be made to have, because it is in what the engine is asked."""

from draftproof.request import SamplingParams


def hotter(params: SamplingParams) -> SamplingParams:
    """Ask for half as much temperature again as is judged."""
    return params.model_copy(update={"temperature": params.temperature * 1.5})


REQUEST_DEFECTS = {"another temperature": hotter}
