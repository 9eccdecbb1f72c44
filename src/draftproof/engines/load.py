"""Models and tokenizers from a name: safetensors weights of causal decoders. Loads no pickle, no code."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draftproof.engines.digest import describe_files
from draftproof.engines.foreign import CAUSAL_LM, one_line, quiet, translated
from draftproof.engines.resolve import Progress, resolve
from draftproof.errors import ModelError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


def load_model(
    name: str, *, dtype: str, device: str, progress: Progress
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Load a causal language model, in eval mode, and its tokenizer.

    Parameters
    ----------
    name : str
        As in `resolve`.
    dtype : {"bfloat16", "float32", "float64"}
    device : str
        As torch names it, such as "cpu" or "cuda:0".
    progress : callable
        Called with one line before each slow step.

    Raises
    ------
    ModelError
        The model is missing, is no causal decoder, lacks weights, or cannot be put on `device`.
    OutputError
        The cache folder for a converted .gguf file cannot be written.
    """
    folder, config = _read_config(name, dtype, progress)
    progress(f"loading {name} in {dtype}")
    with quiet(), translated(name):
        model, loading = CAUSAL_LM.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        if loading["missing_keys"]:
            raise ModelError(
                f"model '{name}' lacks weights ({len(loading['missing_keys'])} tensors, such as "
                f"{min(loading['missing_keys'])}), and they would be random; get a complete checkpoint"
            )
    tokenizer = _tokenizer(folder, name)
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"model '{name}' cannot be put on device '{device}': {one_line(error)}; try 'cpu'") from None
    return model.eval(), tokenizer


def load_empty(name: str, *, dtype: str, progress: Progress) -> PreTrainedModel:
    """
    Return a model without its weights, on torch's "meta" device: shapes are known, nothing is allocated.

    Parameters are those of `load_model`.

    Raises
    ------
    ModelError, OutputError
        As `load_model`, for what can be told without the weights.
    """
    folder, config = _read_config(name, dtype, progress)
    with quiet(), translated(name):
        with torch.device("meta"):
            model = CAUSAL_LM.from_config(config, dtype=DTYPES[dtype], trust_remote_code=False)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    empty: PreTrainedModel = model.eval()
    return empty


def load_tokenizer(name: str, progress: Progress) -> PreTrainedTokenizerBase:
    """
    Load a model's tokenizer alone.

    Raises
    ------
    ModelError, OutputError
        As `load_model`.
    """
    return _tokenizer(resolve(name, progress), name)


def hash_model(name: str, progress: Progress) -> dict[str, Any]:
    """
    Return the hashes of a model's files, as `digest.describe_files` does.

    Raises
    ------
    ModelError, OutputError
        As `resolve`.
    """
    return describe_files(resolve(name, progress))


def tokenizers_differ(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> str | None:
    """
    Name the first token id that two tokenizers spell differently, or return None.

    Only ids that both have (below the smaller length) are compared: padding of the vocabulary makes no difference.
    """
    tokens_a, tokens_b = ({token_id: token for token, token_id in each.get_vocab().items()} for each in (a, b))
    for token_id in range(min(len(a), len(b))):
        if tokens_a.get(token_id) != tokens_b.get(token_id):
            return f"id {token_id} is {tokens_a.get(token_id)!r} in one and {tokens_b.get(token_id)!r} in the other"
    return None


def _read_config(name: str, dtype: str, progress: Progress) -> tuple[Path, Any]:
    if dtype not in DTYPES:
        raise ModelError(f"dtype '{dtype}' is unknown: allowed are {', '.join(DTYPES)}")
    folder = resolve(name, progress)
    _check_safetensors(folder, name)
    with quiet(), translated(name):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check_causal(config, name)
    return folder, config


def _tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    with quiet(), translated(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return tokenizer


def _check_safetensors(folder: Path, name: str) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"model '{name}' has no config.json; give a folder written by save_pretrained")
    if any(folder.glob("*.safetensors")):
        return
    if any(path.suffix in PICKLE_SUFFIXES for path in folder.iterdir()):
        raise ModelError(
            f"model '{name}' has only pickle weights, which can run code when they are loaded; allowed are safetensors "
            "(convert them with save_pretrained)"
        )
    raise ModelError(f"model '{name}' has no *.safetensors file; give a complete folder")


def _check_causal(config: Any, name: str) -> None:
    """Refuse what is no causal decoder, also where transformers would load it as one with a random head."""
    allowed = "allowed are causal decoders such as LlamaForCausalLM"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"model '{name}' ({config.model_type}) is an encoder-decoder; {allowed}")
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    classes = (known,) if isinstance(known, str) else tuple(known)
    architectures = tuple(config.architectures or ())
    if not classes or (architectures and not set(classes) & set(architectures)):
        got = ", ".join(architectures) or config.model_type
        raise ModelError(f"model '{name}' ({got}) has no causal language model head; {allowed}")
