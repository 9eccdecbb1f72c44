"""Random numbers that are none."""

import torch


class Constant:
    """Every number is the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def uniform(self, keys, positions, purpose, count):
        return torch.full((len(keys), count), self.value, dtype=torch.float64)

    def exponential(self, keys, positions, count, size, device):
        return torch.full((len(keys), count, size), self.value, dtype=torch.float64)
