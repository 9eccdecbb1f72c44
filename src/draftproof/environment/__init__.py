"""What a study was measured on, and what two studies must share. Knows no model; does not load torch."""

from draftproof.environment.describe import describe_environment
from draftproof.environment.differences import Difference, differences, facts_named, facts_of
from draftproof.environment.process import peak_rss_bytes, write_probe

__all__ = [
    "Difference",
    "describe_environment",
    "differences",
    "facts_named",
    "facts_of",
    "peak_rss_bytes",
    "write_probe",
]
