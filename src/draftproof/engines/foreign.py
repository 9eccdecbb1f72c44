"""What transformers and its readers say and raise: silenced, and turned into one line of ours. Loads nothing."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from draftproof.errors import ModelError

# the stubs of transformers type from_pretrained for one of its uses only
CAUSAL_LM: Any = AutoModelForCausalLM
# what transformers and its readers raise for a model that they cannot use
FOREIGN_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn what transformers raises into one line about the model called `name`."""
    try:
        yield
    except FOREIGN_ERRORS as error:
        raise ModelError(f"model '{name}' cannot be loaded: {one_line(error)}; check its files") from None


def one_line(error: BaseException) -> str:
    """Return an error's message without line breaks, cut after 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the bars and warnings of transformers and the hub, and put their settings back afterwards."""
    logging: Any = transformers_logging  # partly untyped
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_had_bars = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if hub_had_bars:
        disable_progress_bars()
    try:
        # the bar of the .gguf reader has no switch: it writes to stderr
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
        if hub_had_bars:
            enable_progress_bars()
