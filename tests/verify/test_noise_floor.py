"""Tau: what the target's own logits change between pass shapes, with a floor and a cap."""

import numpy as np
import pytest

from draftproof.verify.noise_floor import CAP, NoiseFloor, gap_changes, measure_noise, ulp
from support.scripted import Restricted
from support.triage import PROMPTS, compared_records, toy_engine


def floor(**values: object) -> NoiseFloor:
    return NoiseFloor(**{"noise": 0.01, "floor": 0.0, "cap": 0.5, "positions": 512, "flips": 0} | values)


def test_tau_is_twice_the_noise() -> None:
    assert floor(noise=0.1).tau == pytest.approx(0.2)


def test_tau_is_never_below_two_units_in_the_last_place() -> None:
    assert floor(noise=0.01, floor=0.25).tau == 0.25


@pytest.mark.parametrize("values", [{"noise": 0.3}, {"noise": 0.1, "floor": 1.0}, {"noise": None}])
def test_tau_is_never_above_the_cap_nor_guessed_below_it(values: dict[str, float | None]) -> None:
    assert floor(**values).tau == 0.5


def test_noise_above_the_cap_is_too_large_to_excuse_anything() -> None:
    assert floor(noise=0.51).too_large
    assert not floor(noise=0.5).too_large and not floor(noise=None).too_large


def test_the_cap_of_wider_numbers_is_smaller() -> None:
    assert CAP["bfloat16"] == CAP["float16"] == 0.5
    assert CAP["float64"] < CAP["float32"] == 1e-3


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [0.7, 1.0, 25.0, -31.9])
def test_a_unit_in_the_last_place_is_numpy_s(dtype: str, value: float) -> None:
    assert ulp(value, dtype) == abs(np.spacing(np.abs(np.array(value, dtype=dtype))))


def test_a_unit_in_the_last_place_of_bfloat16() -> None:
    assert [ulp(value, "bfloat16") for value in (1.0, 15.9, 16.0, 25.0, 31.9, 32.0)] == [
        2**-7,
        0.0625,
        0.125,
        0.125,
        0.125,
        0.25,
    ]
    assert ulp(0.0, "bfloat16") == 0.0


def test_gaps_change_by_what_one_token_moves_against_another() -> None:
    one = np.array([[9.0, 8.0, 7.0, 6.0, 5.0, -1.0]], dtype=np.float32)
    other = one + np.array([[0.5, 0.0, 0.0, 0.0, 0.0, 9.0]], dtype=np.float32)
    # the first of five moves against four; what all share, and what a token below the five does, is no noise
    assert sorted(gap_changes(one, other + 3.0)) == [0.0] * 6 + [0.5] * 4


def test_what_does_not_depend_on_the_shape_has_no_noise() -> None:
    engine = toy_engine()
    found = measure_noise(engine, *compared_records(engine))
    assert found.noise is not None and found.noise < 1e-12 and found.flips == 0 and found.cap == 1e-9
    assert found.positions == sum(
        len(item["token_ids"]) for item in compared_records(engine)[0] if item["block"] == "A1"
    )
    assert 0 < found.floor < 1e-13


def test_a_bias_of_blocks_is_seen_as_noise() -> None:
    engine = toy_engine(bias=0.15, dtype="float32")
    found = measure_noise(engine, *compared_records(engine))
    assert found.noise == pytest.approx(0.15, rel=1e-3)
    # and none of that is excused
    assert found.too_large and found.tau == CAP["float32"]


def test_outputs_share_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.verify.noise_floor.POSITIONS", 2 * len(PROMPTS))
    engine = toy_engine()
    assert measure_noise(engine, *compared_records(engine)).positions == 2 * len(PROMPTS)


def test_an_engine_that_cannot_score_in_passes_gets_the_cap() -> None:
    engine = toy_engine()
    found = measure_noise(Restricted(engine, score_passes=False), *compared_records(engine))
    assert (found.noise, found.positions, found.tau) == (None, 0, CAP["float64"])
