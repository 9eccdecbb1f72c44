"""The same surroundings for every test: no settings from the caller's environment, no network, one seed."""

import os

import pytest
import torch

KEPT_OUT = ("DRAFTPROOF_", "HF_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-requests", type=int, default=200, help="random requests of the soak test")
    parser.addoption("--soak-kills", type=int, default=5, help="kills of a study by the soak test")


def pytest_configure() -> None:
    # huggingface_hub reads this once, when it is imported, and that is before any fixture runs
    os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(KEPT_OUT):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


@pytest.fixture
def short_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model measures its pass shapes; here over fewer positions, which tests/decoding/test_decoding_shapes.py does in full."""
    monkeypatch.setattr("draftproof.decoding.shapes.POSITIONS", 4)
