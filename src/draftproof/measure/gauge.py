"""What a block of requests takes besides time: peak memory and energy. None where the host does not tell."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from draftproof.environment import peak_rss_bytes
from draftproof.measure.energy import Meter, find_meter

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
RESET_PEAK = "5"  # of what proc(5) allows: the peak of resident memory, and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    One block.

    Attributes
    ----------
    peak_bytes : int or None
        Most memory during the block: resident in the process (CPU), or allocated by it on the GPU.
    joules : float or None
    """

    peak_bytes: int | None = None
    joules: float | None = None


class Gauge:
    """
    Reads before and after a block; made before the models are loaded.

    Attributes
    ----------
    before_loading_bytes : int
        What the process held then.
    energy_source : str
        The meter, or why there is none.
    why_no_peak : str or None
    """

    def __init__(self) -> None:
        self.before_loading_bytes = int(psutil.Process().memory_info().rss)
        self.energy_source = "the engine names no device of this machine"
        self.why_no_peak: str | None = None
        self._highest = peak_rss_bytes()
        self._meter: Meter | None = None
        self._device: str | None = None
        self._joules = 0.0

    @contextmanager
    def opened(self, device: str | None) -> Iterator[None]:
        """Read what a device has; ``device`` as torch names it, None where time and memory are made up."""
        self._device = device
        gpu = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if self.on_gpu else ""
        self._meter, self.energy_source = find_meter(device, gpu)
        if device is None:
            self.why_no_peak = "the engine names no device of this machine"
        elif not self.on_gpu and not self._reset():
            self.why_no_peak = "this system does not let a process reset its peak"
        try:
            yield
        finally:
            if self._meter is not None:
                self._meter.close()

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU's memory is read, not the process's."""
        return self._device is not None and self._device.startswith("cuda")

    @property
    def process_peak_bytes(self) -> int:
        """Most memory that the process has held since it began, whatever was reset since."""
        self._highest = max(self._highest, peak_rss_bytes())
        return self._highest

    def start(self) -> None:
        """Begin a block."""
        if self.why_no_peak is None:
            if self.on_gpu:
                torch.cuda.reset_peak_memory_stats(self._device)
            else:
                self._reset()
        if self._meter is not None:
            self._joules = self._meter.joules()

    def stop(self) -> Reading:
        """End it."""
        joules = None if self._meter is None else self._meter.joules() - self._joules
        peak: int | None = None
        if self.why_no_peak is None:
            peak = int(torch.cuda.max_memory_allocated(self._device)) if self.on_gpu else _peak_since_reset()
        if peak is not None and not self.on_gpu:
            self._highest = max(self._highest, peak)
        return Reading(peak_bytes=peak, joules=joules)

    def _reset(self) -> bool:
        self._highest = max(self._highest, peak_rss_bytes())
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
        except OSError:
            return False
        return True


def _peak_since_reset() -> int | None:
    for line in STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
