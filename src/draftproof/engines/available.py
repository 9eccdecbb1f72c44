"""How many bytes a device has free for us: the machine's, its container's, or the GPU's. Allocates nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from draftproof.errors import ModelError

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
# files of a group: its limit, its use; and the line of memory.stat with pages that the kernel gives back when asked
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that are free, and whose."""

    num_bytes: int
    whose: str


def available_memory(device: str) -> Available:
    """
    Ask for free memory: on a GPU its own, elsewhere the less of the machine's and the container's.

    Raises
    ------
    ModelError
        There is no such device.
    """
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no values")
        if torch.device(device).type == "cuda":
            return Available(torch.cuda.mem_get_info(device)[0], f"free on {device}")
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device '{device}' cannot be used: {' '.join(str(error).split())}; try 'cpu'") from None
    rooms = [Available(int(psutil.virtual_memory().available), "available on this machine")]
    rooms += [Available(room, "left under the container's limit") for room in _container_rooms()]
    return min(rooms, key=lambda room: room.num_bytes)


def _container_rooms(root: Path = CGROUPS, own: Path = OWN_GROUPS) -> Iterator[int]:
    """Yield limit - use of this process's control group and of each one above it (versions 1 and 2)."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, names = (root / "memory", VERSION_1) if controllers else (root, VERSION_2)
        inner = top / path.strip("/")
        for group in (inner, *inner.parents):
            if group.is_relative_to(top) and (room := _room(group, *names)) is not None:
                yield room


def _room(group: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        most = int((group / limit).read_text(encoding="utf-8"))
        now = int((group / used).read_text(encoding="utf-8"))
        stat = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None  # no such group here, or no limit ("max")
    given_back = sum(int(line.split()[1]) for line in stat if line.split()[0] == reclaimable)
    return max(0, most - now + given_back)
