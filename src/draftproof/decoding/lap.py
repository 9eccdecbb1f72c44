"""Time between two points of a device's work, without making the host wait for either."""

from collections.abc import Callable

import torch


def mark(device: torch.device, clock: Callable[[], float]) -> Callable[[], float]:
    """
    Mark a point of the device's work.

    Parameters
    ----------
    device : torch.device
    clock : callable
        Seconds, monotonic; used where the device works as the host asks (CPU).

    Returns
    -------
    callable
        Marks a second point and returns the ms between the two. On a GPU call it when the device has caught up.
    """
    if device.type != "cuda":
        began = clock()
        return lambda: (clock() - began) * 1e3
    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.current_stream(device)
    first.record(stream)

    def lap() -> float:
        second.record(stream)
        second.synchronize()
        return float(first.elapsed_time(second))

    return lap
