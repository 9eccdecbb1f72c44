"""``draftproof predict``: from a study or from given numbers, and one line where neither is whole."""

import json
from functools import partial
from pathlib import Path

import pytest

from draftproof.study.run import run_study
from support.command_line import Call
from support.scripted import WITHOUT_SAMPLED, Silent, make_plan


@pytest.fixture
def predict(draftproof: Call) -> Call:
    return partial(draftproof, "predict")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run_study(make_plan(folder, **WITHOUT_SAMPLED), folder / "out", resume=False, progress=Silent())
    return folder / "out"


@pytest.mark.parametrize("name", ["", "evidence.json"])
def test_a_finished_study_is_predicted_for_every_k(finished: Path, tmp_path: Path, predict, name: str) -> None:
    code, out, err = predict(finished / name, "--json", tmp_path / "p.json")
    assert (code, err) == (0, "") and "1 at a time" in out and "measured" in out and "agree within 10 %" in out
    stored = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["prediction"]["1"]
    assert [row["num_speculative_tokens"] for row in stored["by_k"]][:2] == [1, 2]


def test_given_times_and_acceptance_are_the_formula(tmp_path: Path, predict) -> None:
    code, out, err = predict(
        "--acceptance", 0.7, "--draft-ms", 5, "--target-ms", 40, "--json", tmp_path / "p.json"
    )  # fmt: skip
    stored = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert (code, err) == (0, "") and "fastest: k = 4" in out and stored["best"] == 4 and len(stored["by_k"]) == 8
    assert stored["by_k"][0]["speedup"] == pytest.approx(1.7 * 40 / 45)


def test_positions_and_the_scoring_pass_can_be_given(predict) -> None:
    _, out, _ = predict("--acceptance", "0.9,0.5,0.1", "--draft-ms", 0, "--target-ms", 10, "--score-ms", 12)
    assert "fastest: k = 3" in out
    _, out, _ = predict("--acceptance", "0.1", "--draft-ms", 9, "--target-ms", 10)
    assert "target-only is fastest" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--acceptance, --draft-ms, --target-ms missing"),
        (["--acceptance", 0.5, "--draft-ms", 1], "--target-ms missing"),
        (["--acceptance", 1.5, "--draft-ms", 1, "--target-ms", 1], "numbers from 0 to 1"),
        (["--acceptance", "a", "--draft-ms", 1, "--target-ms", 1], "numbers from 0 to 1"),
        (["--acceptance", "nan", "--draft-ms", 1, "--target-ms", 1], "numbers from 0 to 1"),
        (["--acceptance", 0.5, "--draft-ms", -1, "--target-ms", 1], "--draft-ms = -1"),
        (["--acceptance", 0.5, "--draft-ms", 1, "--target-ms", 0], "--target-ms = 0"),
        (["--acceptance", 0.5, "--draft-ms", 1, "--target-ms", "inf"], "--target-ms = inf"),
        (["--acceptance", 0.5, "--draft-ms", 1, "--target-ms", 1, "--score-ms", 0], "--score-ms = 0"),
        (
            ["--acceptance", 0.5, "--draft-ms", 1, "--target-ms", 1, "--num-speculative-tokens", 0],
            "allowed 1 to 128",
        ),
        (
            ["--acceptance", "0.5,0.4", "--draft-ms", 1, "--target-ms", 1, "--num-speculative-tokens", 3],
            "has 2 positions",
        ),
        (["nowhere.json"], "cannot read nowhere.json"),
        (["nowhere.json", "--acceptance", 0.5], "are both given"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(predict, arguments: list[object], said: str) -> None:
    code, out, err = predict(*arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err


def test_a_study_without_rounds_says_so(finished: Path, tmp_path: Path, predict) -> None:
    values = json.loads((finished / "evidence.json").read_text(encoding="utf-8"))
    values["comparison"]["prediction"] = {}
    (tmp_path / "evidence.json").write_text(json.dumps(values), encoding="utf-8")
    code, _, err = predict(tmp_path)
    assert code == 2 and err.count("\n") == 1 and "has no prediction" in err
