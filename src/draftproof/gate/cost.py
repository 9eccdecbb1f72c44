"""What speculation costs to run and what it saves, a month, in the user's own unit. Knows no arms and no verdict."""

from pydantic import BaseModel, ConfigDict, Field


class OperatingCost(BaseModel):
    """
    Of a service that runs target-only today.

    Speculation pays if ``saved GPU-hours * gpu_hour_worth >= build + store + monitor + upgrade``, with
    ``saved GPU-hours = gpu_hours_per_month * (1 - 1 / speed-up)``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gpu_hours_per_month: float = Field(gt=0)
    """GPU-hours that the target-only service uses now; CPU-hours do as well."""
    gpu_hour_worth: float = Field(gt=0)
    """What a saved one is worth."""
    build_per_month: float = Field(default=0.0, ge=0)
    """Making or getting the draft, spread over its months of use."""
    store_per_month: float = Field(default=0.0, ge=0)
    """Keeping and shipping it."""
    monitor_per_month: float = Field(default=0.0, ge=0)
    """Watching acceptance and output."""
    upgrade_per_month: float = Field(default=0.0, ge=0)
    """Doing all of it again with each new target, driver or engine."""
    unit: str = Field(default="units", min_length=1)
    """The unit of worth and costs, for the report."""

    @property
    def total(self) -> float:
        """All costs of a month."""
        return self.build_per_month + self.store_per_month + self.monitor_per_month + self.upgrade_per_month

    @property
    def break_even_speedup(self) -> float | None:
        """The speed-up from which on it pays; None where all GPU-hours together are not worth its cost."""
        rest = 1 - self.total / (self.gpu_hours_per_month * self.gpu_hour_worth)
        return 1 / rest if rest > 0 else None

    def saved(self, speedup: float) -> float:
        """Return the worth of the GPU-hours that a speed-up saves in a month; below 1 it costs some, and is negative."""
        return self.gpu_hours_per_month * (1 - 1 / speedup) * self.gpu_hour_worth
