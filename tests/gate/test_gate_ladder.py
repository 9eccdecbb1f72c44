"""Up by a passed study of one rung each, down to the last verified rung, at the bottom target-only."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import InputError, RefusedError
from draftproof.gate.events import Event, Kind, read_events
from draftproof.gate.ladder import active, fold, read_ladder, refresh, roll_back
from draftproof.gate.promote import promote
from draftproof.gate.rung import read_rung
from support.ladder import HERE, NEW_TORCH, climb, make_evidence

DYNAMIC: dict[str, Any] = {"confidence_threshold": 0.4}
CANDIDATES = {
    "fixed": read_rung(make_evidence(), None),
    "batch": read_rung(make_evidence(batches=(4,)), None),
    "dynamic": read_rung(make_evidence(batches=(4,), **DYNAMIC), None),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ladder.sqlite"


@pytest.fixture
def climbed(path: Path) -> Path:
    """Three rungs: 2 is batch 1, 3 is batch 4, 4 is dynamic K at batch 4."""
    climb(path, "first")
    climb(path, "second", batches=(4,))
    climb(path, "third", batches=(4,), **DYNAMIC)
    return path


def kinds(path: Path) -> list[Kind]:
    return [event.kind for event in read_events(path)]


# --- folding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "standing", "fallen"),
    [
        pytest.param([], [], {}, id="nothing"),
        pytest.param([("created", "", None)], [], {}, id="created"),
        pytest.param([("promoted", "fixed", None)], [1], {}, id="one"),
        pytest.param([("promoted", "fixed", None), ("promoted", "batch", None)], [1, 2], {}, id="two"),
        pytest.param([("promoted", "fixed", None), ("refused", "batch", None)], [1], {}, id="refused"),
        pytest.param(
            [("promoted", "fixed", None), ("promoted", "batch", None), ("rolled_back", "batch", 2)],
            [1], {"batch": 3}, id="rolled-back",
        ),
        pytest.param(
            [("promoted", "fixed", None), ("promoted", "batch", None), ("expired", "fixed", 1)],
            [], {"fixed": 3, "batch": 3}, id="expired-with-what-is-above",
        ),
        pytest.param(
            [("promoted", "fixed", None), ("promoted", "batch", None), ("promoted", "dynamic", None), ("failed", "batch", 2)],
            [1], {"batch": 4, "dynamic": 4}, id="failed-in-the-middle",
        ),
        pytest.param([("promoted", "fixed", None), ("failed", "batch", None)], [1], {"batch": 2}, id="failed-before-it-stood"),
        pytest.param(
            [("promoted", "fixed", None), ("rolled_back", "fixed", 1), ("promoted", "fixed", None)], [3], {}, id="again"
        ),
        pytest.param([("failed", "fixed", None), ("failed", "fixed", None)], [], {"fixed": 2}, id="the-last-word-counts"),
        pytest.param(
            [("promoted", "fixed", None), ("rolled_back", "fixed", 1), ("expired", "fixed", 1)],
            [], {"fixed": 2}, id="nothing-left-to-fall",
        ),
    ],
)  # fmt: skip
def test_events_fold_to_what_stands(
    events: list[tuple[Kind, str, int | None]], standing: list[int], fallen: dict[str, int]
) -> None:
    made = [
        Event(id=number, at="2026-11-30T06:00:00+00:00", kind=kind, rung=CANDIDATES.get(name), promotion=promotion)
        for number, (kind, name, promotion) in enumerate(events, 1)
    ]
    ladder = fold(made)
    assert [event.id for event in ladder.standing] == standing
    assert {item.rung.key: item.by.id for item in ladder.fallen} == {
        CANDIDATES[name].key: number for name, number in fallen.items()
    }
    assert (ladder.top.id if ladder.top else 0) == (standing[-1] if standing else 0)


# --- up ---------------------------------------------------------------------------------------------------------------


def test_the_steps_are_fixed_then_batch_then_dynamic(climbed: Path) -> None:
    assert kinds(climbed) == ["created", "promoted", "promoted", "promoted"]
    ladder = read_ladder(climbed)
    assert [event.id for event in ladder.standing] == [2, 3, 4] and ladder.fallen == ()
    top = ladder.top
    assert top is not None and top.rung is not None and top.rung.label == "batch 4, dynamic K up to 5"
    assert (top.verdict, top.evidence_sha256, top.study_hash) == ("ADOPT", "sha256 of third", "ab" * 32)
    assert top.environment == {
        "draftproof": "0.1.0", "cpu_model": "a processor", "cpu_flags": ["avx2"], "python": "CPython 3.11",
        "packages.torch": "2.13.0", "packages.numpy": "2.4.6",
    }  # fmt: skip


REFUSALS = [
    pytest.param({"verdict": "INCONCLUSIVE"}, 11, "refused", "the verdict is INCONCLUSIVE", id="inconclusive"),
    pytest.param({"verdict": "KEEP_TARGET_ONLY"}, 10, "failed", "the verdict is KEEP_TARGET_ONLY", id="keep"),
    pytest.param({"verdict": "ROLL_BACK"}, 12, "failed", "the verdict is ROLL_BACK", id="roll-back"),
    pytest.param({"by_concurrency": {"4": "KEEP_TARGET_ONLY"}}, 10, "failed", "KEEP_TARGET_ONLY at concurrency 4", id="slow-here"),
    pytest.param({"by_concurrency": {}}, 11, "refused", "missing at concurrency 4", id="no-verdict-here"),
    pytest.param({"registered": False}, 11, "refused", "another policy", id="not-registered"),
    pytest.param({"registered": False, "verdict": "ROLL_BACK"}, 12, "refused", "another policy", id="failed-by-another-policy"),
    pytest.param({"verdict": "INCONCLUSIVE", "stopped": "smoke: x."}, 11, "refused", "stopped early (smoke: x)", id="stopped"),
    pytest.param({"environment": NEW_TORCH}, 11, "refused", "packages.torch (2.14.0, now 2.13.0)", id="elsewhere"),
    pytest.param({"environment": NEW_TORCH, "verdict": "ROLL_BACK"}, 12, "refused", "packages.torch", id="failed-elsewhere"),
    pytest.param({"version": "0.0.9"}, 11, "refused", "draftproof (0.0.9, now", id="another-engine"),
    pytest.param({"k": 4}, 11, "refused", "another fixed K", id="another-k"),
    pytest.param(DYNAMIC, 11, "refused", "the batch and K at once", id="two-steps"),
]  # fmt: skip


@pytest.mark.parametrize(("study", "code", "kind", "said"), REFUSALS)
def test_a_rule_against_a_rung_is_told_and_stored_and_what_stood_still_stands(
    path: Path, study: dict[str, Any], code: int, kind: Kind, said: str
) -> None:
    climb(path, "first")
    with pytest.raises(RefusedError) as refused:
        climb(path, "second", **{"batches": (4,)} | study)
    assert refused.value.exit_code == code and said in str(refused.value)
    assert str(refused.value).endswith("active: rung 2 (batch 1, K 5)") and "\n" not in str(refused.value)
    last = read_events(path)[-1]
    assert (last.kind, last.promotion) == (kind, None) and last.reason is not None and said in last.reason
    assert [event.id for event in read_ladder(path).standing] == [2]


def test_dynamic_k_cannot_be_first(path: Path) -> None:
    with pytest.raises(RefusedError, match="needs a verified rung with a fixed K"):
        climb(path, "first", **DYNAMIC)
    assert kinds(path) == ["created", "refused"] and read_ladder(path).top is None


def test_evidence_without_a_rung_leaves_no_ladder(path: Path) -> None:
    with pytest.raises(InputError, match="choose it by --concurrency"):
        climb(path, "first", batches=(1, 4))
    assert not path.exists()


def test_one_study_promotes_one_rung(path: Path) -> None:
    evidence = make_evidence(batches=(1, 4))
    promote(path, evidence, "sha256", HERE, concurrency=1)
    with pytest.raises(RefusedError, match=r"has promoted rung 2 \(batch 1, K 5\) already"):
        promote(path, evidence, "sha256", HERE, concurrency=4)


def test_promoting_what_stands_changes_nothing(climbed: Path) -> None:
    ladder, event = climb(climbed, "once more", batches=(4,))
    assert event.id == 3 and event.evidence_sha256 == "sha256 of second"
    assert ladder == read_ladder(climbed) and len(kinds(climbed)) == 4


def test_model_files_are_those_of_the_study_and_where_it_hashed_none_those_at_the_promotion(path: Path) -> None:
    here = HERE | {"models": {"a/target": {"weights": "now", "config": "c"}, "b/other": {"weights": "x"}}}
    hashed = {"model": {"target": {"weights": "now", "config": None, "files": ["w"]}, "drafts": [{"weights": "d"}]}}
    for turn, (engine, expected) in enumerate([({}, {}), (hashed, {"models.a/draft.weights": "d"})]):
        _, event = climb(path.with_suffix(f".{turn}"), "first", here=here, environment=HERE | {"engine": engine})
        assert event.environment is not None
        assert {name: value for name, value in event.environment.items() if "models" in name} == {
            "models.a/target.weights": "now", "models.a/target.config": "c", **expected,
        }  # fmt: skip
    hashed["model"]["target"] = {"weights": "then"}
    with pytest.raises(RefusedError, match=r"models\.a/target\.weights \(then, now now\)"):
        climb(path.with_suffix(".1"), "second", here=here, batches=(4,), environment=HERE | {"engine": hashed})


@pytest.mark.parametrize(("kind", "standing"), [("openai_http", []), ("native", [2])])
def test_another_version_of_a_server_ends_the_rungs_that_it_ran_and_no_others(
    path: Path, kind: str, standing: list[int]
) -> None:
    then, now = (
        HERE | {"packages": {**HERE["packages"], "vllm": version}} for version in ("0.10.0", "0.11.0")
    )  # fmt: skip
    climb(path, "first", here=then, environment=then, engine={"kind": kind})
    ladder = refresh(path, now)
    assert [event.id for event in ladder.standing] == standing
    if not standing:
        assert ladder.fallen[0].by.reason == "packages.vllm (0.10.0, now 0.11.0)"


# --- down -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "left", "first"),
    [
        pytest.param(None, [2, 3], 4, id="next"),
        pytest.param(3, [2, 3], 4, id="number"),
        pytest.param(2, [2], 3, id="two-down"),
        pytest.param(0, [], 2, id="target-only"),
    ],
)
def test_a_roll_back_goes_to_a_verified_rung_below(climbed: Path, to: int | None, left: list[int], first: int) -> None:
    ladder, event = roll_back(climbed, to=to, reason="odd answers", note="me")
    assert [item.id for item in ladder.standing] == left
    assert (event.kind, event.promotion, event.reason, event.note) == ("rolled_back", first, "odd answers", "me")
    assert read_ladder(climbed) == ladder and len(ladder.fallen) == 3 - len(left)


@pytest.mark.parametrize("to", [1, 4, 5, 99])
def test_there_is_no_roll_back_to_what_is_not_below(climbed: Path, to: int) -> None:
    with pytest.raises(InputError, match=rf"no rung {to} below .* allowed: target-only, 2, 3$"):
        roll_back(climbed, to=to, reason="x")
    assert len(kinds(climbed)) == 4


def test_nothing_is_below_target_only(climbed: Path) -> None:
    roll_back(climbed, to=0, reason="x")
    with pytest.raises(InputError, match="at target-only, and nothing is below it"):
        roll_back(climbed, reason="x")


def test_a_later_study_that_fails_takes_its_rung_and_those_above_down(climbed: Path) -> None:
    with pytest.raises(RefusedError, match=r"active: rung 2 \(batch 1, K 5\)"):
        climb(climbed, "again", batches=(4,), verdict="ROLL_BACK")
    ladder = read_ladder(climbed)
    assert [event.id for event in ladder.standing] == [2]
    assert {item.rung.label: item.by.kind for item in ladder.fallen} == {
        "batch 4, K 5": "failed", "batch 4, dynamic K up to 5": "failed",
    }  # fmt: skip


@pytest.mark.parametrize("study", [{"verdict": "INCONCLUSIVE"}, {"verdict": "ROLL_BACK", "environment": NEW_TORCH}])
def test_a_study_that_shows_nothing_here_takes_nothing_down(climbed: Path, study: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        climb(climbed, "again", **{"batches": (4,)} | study)
    assert [event.id for event in read_ladder(climbed).standing] == [2, 3, 4]


def test_a_rung_that_failed_comes_back_by_a_new_study_and_a_cause(climbed: Path) -> None:
    with pytest.raises(RefusedError):
        climb(climbed, "failing", batches=(4,), verdict="KEEP_TARGET_ONLY")
    with pytest.raises(RefusedError, match="say by --reason what the cause was"):
        climb(climbed, "new", batches=(4,))
    with pytest.raises(RefusedError, match="failed after this evidence was given"):
        climb(climbed, "second", batches=(4,), reason="a neighbour took the cores")
    ladder, event = climb(climbed, "new", batches=(4,), reason="a neighbour took the cores")
    assert ladder.top == event and event.reason == "a neighbour took the cores"
    assert [item.rung.label for item in ladder.fallen] == ["batch 4, dynamic K up to 5"]


def test_a_rung_that_was_rolled_back_comes_back_with_a_cause(climbed: Path) -> None:
    roll_back(climbed, reason="odd answers")
    with pytest.raises(RefusedError, match=r"was rolled back at .* \(odd answers\); say by --reason"):
        climb(climbed, "third", batches=(4,), **DYNAMIC)
    ladder, _ = climb(climbed, "third", batches=(4,), reason="a client's fault", **DYNAMIC)
    assert len(ladder.standing) == 3


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_a_changed_environment_is_recorded_once_and_leaves_target_only(climbed: Path) -> None:
    assert refresh(climbed, HERE) == read_ladder(climbed) and len(kinds(climbed)) == 4
    ladder = refresh(climbed, NEW_TORCH)
    assert ladder.standing == () and [item.by.kind for item in ladder.fallen] == ["expired"] * 3
    last = read_events(climbed)[-1]
    assert (last.kind, last.promotion, last.reason) == ("expired", 2, "packages.torch (2.13.0, now 2.14.0)")
    assert refresh(climbed, NEW_TORCH) == ladder == refresh(climbed, HERE) and len(kinds(climbed)) == 5


def test_what_expired_in_the_middle_falls_to_the_rung_below(path: Path) -> None:
    climb(path, "first", here=HERE)
    climb(path, "second", batches=(4,), here=HERE | {"models": {"a/draft": {"weights": "then"}}})
    ladder = refresh(path, HERE | {"models": {"a/draft": {"weights": "now"}}})
    assert [event.id for event in ladder.standing] == [2]
    assert ladder.fallen[0].by.reason == "models.a/draft.weights (then, now now)"


def test_an_expired_rung_is_climbed_again_by_a_study_of_the_new_environment(climbed: Path) -> None:
    ladder, event = climb(climbed, "new", here=NEW_TORCH, environment=NEW_TORCH)
    assert kinds(climbed)[-2:] == ["expired", "promoted"] and ladder.standing == (event,)
    with pytest.raises(RefusedError, match="measured in another environment"):
        climb(climbed, "old", here=NEW_TORCH, batches=(4,))


# --- what a server asks -----------------------------------------------------------------------------------------------


def test_the_active_rung_is_the_highest_that_is_valid_here_and_asking_stores_nothing(climbed: Path) -> None:
    found = active(climbed, HERE)
    assert found.rung is not None and (found.number, found.rung.label) == (4, "batch 4, dynamic K up to 5")
    before = climbed.read_bytes()
    found = active(climbed, NEW_TORCH)
    assert (found.rung, found.number) == (None, 0)
    assert found.reason == "no rung stands; rung 2 (batch 1, K 5) has expired: packages.torch (2.13.0, now 2.14.0)"
    assert climbed.read_bytes() == before


def test_the_active_rung_may_be_below_one_that_expired(path: Path) -> None:
    climb(path, "first")
    climb(path, "second", batches=(4,), here=HERE | {"models": {"a/draft": {"weights": "then"}}})
    found = active(path, HERE | {"models": {"a/draft": {"weights": "now"}}})
    assert found.number == 2 and "rung 3 (batch 4, K 5) has expired: models.a/draft" in found.reason


@pytest.mark.parametrize("engine", ["x", {"model": 3}, {"model": {"target": "x", "drafts": None}}])
def test_an_engine_that_tells_no_hashes_is_no_error(path: Path, engine: Any) -> None:
    assert climb(path, "first", environment=HERE | {"engine": engine})[0].top is not None


def test_a_ladder_that_cannot_be_read_is_target_only(tmp_path: Path, climbed: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100, encoding="utf-8")
    with sqlite3.connect(climbed) as connection:
        connection.execute("DROP TRIGGER no_update")
        connection.execute("UPDATE event SET rung = '{'")
    connection.close()
    for name, said in (
        ("none", "no ladder"),
        ("text", "not a database"),
        ("ladder.sqlite", "cannot be read"),
        ("", "no ladder"),
    ):
        found = active(tmp_path / name, HERE)
        assert (found.rung, found.number) == (None, 0) and said in found.reason
    roomless = active(tmp_path / "text" / "below", HERE)
    assert roomless.rung is None and "no ladder" in roomless.reason
