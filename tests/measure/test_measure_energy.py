"""Energy is read where the host exposes it; elsewhere there is no number, and the reason is said."""

import sys
import time
from pathlib import Path

import pytest

from draftproof.measure.energy import NvidiaSmi, Rapl, find_meter

RANGE = 1_000_000


def package(folder: Path, name: str, microjoules: int) -> Path:
    path = folder / name
    path.mkdir()
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return path


def test_packages_are_summed_and_a_counter_may_start_again(tmp_path: Path) -> None:
    one, two = package(tmp_path, "intel-rapl:0", 100), package(tmp_path, "intel-rapl:1", RANGE - 50)
    package(tmp_path, "intel-rapl:0:0", 5)  # cores, which the package holds already
    meter, source = find_meter("cpu", powercap=tmp_path)
    assert isinstance(meter, Rapl) and "RAPL" in source and meter.joules() == 0.0
    (one / "energy_uj").write_text("400\n")
    (two / "energy_uj").write_text("49\n")
    assert meter.joules() == pytest.approx(400e-6)
    (one / "energy_uj").write_text("500\n")
    assert meter.joules() == pytest.approx(500e-6)


def test_counters_that_cannot_be_read_are_no_meter_and_no_zero(tmp_path: Path) -> None:
    (package(tmp_path, "intel-rapl:0", 100) / "energy_uj").unlink()
    assert find_meter("cpu", powercap=tmp_path) == (None, "this host's RAPL counters may not be read by this user")


@pytest.mark.parametrize(
    ("device", "why"),
    [("cpu", "exposes no RAPL"), (None, "names no device"), ("mps", "no meter is known for device 'mps'")],
)
def test_without_a_meter_the_reason_is_said(tmp_path: Path, device: str | None, why: str) -> None:
    meter, reason = find_meter(device, powercap=tmp_path)
    assert meter is None and why in reason


def test_a_gpu_without_its_program_has_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    meter, reason = find_meter("cuda:1")
    assert meter is None and "nvidia-smi gives no power" in reason


def test_power_is_summed_over_time() -> None:
    """A program that says 200 W; the joules are its watts times the seconds that passed, whatever they were."""
    says = "import time\nwhile True:\n print(200.0, flush=True)\n time.sleep(0.01)"
    began = time.perf_counter()
    meter = NvidiaSmi((sys.executable, "-c", says))
    opened = time.perf_counter()
    time.sleep(0.1)
    asked = time.perf_counter()
    joules = meter.joules()
    ended = time.perf_counter()
    meter.close()
    assert 200.0 * (asked - opened) <= joules <= 200.0 * (ended - began)


def test_a_program_that_gives_no_power_is_refused() -> None:
    with pytest.raises(OSError, match="no power reading"):
        NvidiaSmi((sys.executable, "-c", "print('[N/A]')"))
