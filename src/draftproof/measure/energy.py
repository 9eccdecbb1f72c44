"""Energy, where the host exposes it: the CPU packages by RAPL, an NVIDIA GPU by its power over time."""

import subprocess
import threading
import time
from pathlib import Path
from typing import Protocol

POWERCAP = Path("/sys/class/powercap")
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-lms", "100", "-i")


class Meter(Protocol):
    """Counts energy."""

    source: str

    def joules(self) -> float:
        """Return what was used since some fixed moment, in J."""
        ...

    def close(self) -> None:
        """Stop counting."""
        ...


class Rapl:
    """
    All CPU packages of the host, other processes' use included.

    Parameters
    ----------
    packages : list of Path
        Folders with ``energy_uj`` and ``max_energy_range_uj``, in microjoules; the counter starts again at its range.
    """

    source = "RAPL, all CPU packages of the host"

    def __init__(self, packages: list[Path]) -> None:
        self._packages = {package: int((package / "max_energy_range_uj").read_text()) for package in packages}
        self._last = {package: self._read(package) for package in packages}
        self._microjoules = 0

    def joules(self) -> float:
        """See `Meter.joules`; ask more often than a counter runs through its range (minutes)."""
        for package, span in self._packages.items():
            now = self._read(package)
            self._microjoules += (now - self._last[package]) % (span + 1)
            self._last[package] = now
        return self._microjoules / 1e6

    def close(self) -> None:
        """Nothing runs."""

    @staticmethod
    def _read(package: Path) -> int:
        return int((package / "energy_uj").read_text())


class NvidiaSmi:
    """
    One GPU, other processes' use included: its power every 100 ms, times the time since the last reading.

    Parameters
    ----------
    command : sequence of str
        Writes one number, W, a line.

    Raises
    ------
    OSError
        It cannot be started, or writes something else.
    """

    source = "nvidia-smi, power of the GPU every 100 ms"

    def __init__(self, command: tuple[str, ...]) -> None:
        self._joules, self._watts = 0.0, 0.0
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self._watts = float(self._readline())
        except ValueError:
            self.close()
            raise OSError("no power reading") from None
        self._at = time.perf_counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def joules(self) -> float:
        """See `Meter.joules`."""
        self._count(self._watts)
        return self._joules

    def close(self) -> None:
        """Stop the program."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _readline(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _follow(self) -> None:
        try:
            while line := self._readline():
                self._count(float(line))
        except ValueError:
            pass  # closed, or no number any more: the last power stands

    def _count(self, watts: float) -> None:
        with self._lock:
            now = time.perf_counter()
            self._joules += self._watts * (now - self._at)
            self._watts, self._at = watts, now


def find_meter(device: str | None, gpu: str = "0", powercap: Path = POWERCAP) -> tuple[Meter | None, str]:
    """
    Return a meter for a device, and its name or why there is none.

    Parameters
    ----------
    device : str or None
        As torch names it; None where the engine's time is not this machine's.
    gpu : str
        As nvidia-smi names it: an index, which may be another than torch's, or a UUID.
    """
    if device is None:
        return None, "the engine names no device of this machine"
    if device.startswith("cuda"):
        try:
            return NvidiaSmi((*NVIDIA_SMI, gpu)), NvidiaSmi.source
        except OSError as error:
            return None, f"nvidia-smi gives no power: {error.strerror or error}"
    if device != "cpu":
        return None, f"no meter is known for device '{device}'"
    packages = sorted(path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1)
    if not packages:
        return None, "this host exposes no RAPL counters"
    try:
        return Rapl(packages), Rapl.source
    except (OSError, ValueError):
        return None, "this host's RAPL counters may not be read by this user"
