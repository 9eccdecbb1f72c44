"""What torch runs on here: its version, libraries, threads and GPU, and how a clock waits for the device."""

import functools
import re
from typing import Any

import torch


def describe_runtime(device: torch.device) -> dict[str, Any]:
    """
    Return the facts about torch that times depend on, as JSON values.

    Parameters
    ----------
    device : torch.device
        Where the model is.

    Returns
    -------
    dict
        ``cuda``, ``cudnn`` and ``gpu`` are None where the build or the device has none; ``blas`` is what torch was built with.
    """
    backends: Any = torch.backends  # partly untyped
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "torch": str(torch.__version__),
        "blas": _blas(),
        "onednn": backends.mkldnn.is_available(),
        "cpu_capability": backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cuda": torch.version.cuda,
        "cudnn": backends.cudnn.version() if backends.cudnn.is_available() else None,
        "gpu": None if gpu is None else {"name": gpu.name, "memory_bytes": int(gpu.total_memory)},
        "synchronisation": synchronisation(device),
    }


def synchronisation(device: torch.device) -> str:
    """Say how a time is taken only after the device has done its work."""
    if device.type == "cuda":
        return "torch.cuda.synchronize before each reading of the clock"
    return "none needed: a pass on the CPU returns when it is done"


@functools.cache
def _blas() -> str | None:
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return found[1] if found else None
