"""Stored studies are read as they are, and what cannot be read is one line."""

import json
from pathlib import Path

import pytest

from draftproof.errors import InputError
from draftproof.measure.stored import load_runs
from draftproof.study.run import run_study
from support.scripted import WITHOUT_SAMPLED, Silent, Stopping, make_plan


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    run_study(make_plan(folder, **WITHOUT_SAMPLED), folder / "out", resume=False, progress=Silent())
    return folder / "out"


def copy(stored: Path, folder: Path, requests: str | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_bytes((stored / "evidence.json").read_bytes())
    if requests is not None:
        (folder / "requests.jsonl").write_text(requests, encoding="utf-8")
    return folder


def test_a_folder_and_its_evidence_are_the_same_run_and_nothing_is_written(stored: Path) -> None:
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    one, two = load_runs([stored, stored / "evidence.json"])
    assert one.evidence == two.evidence and one.records == two.records
    assert one.records is not None and len(one.records) == 18
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before


def test_runs_are_named_by_their_folders_and_by_their_paths_where_these_are_alike(stored: Path, tmp_path: Path) -> None:
    other = copy(stored, tmp_path / "other")
    assert [run.name for run in load_runs([stored, other])] == ["out", "other"]
    same = copy(stored, tmp_path / "out")
    assert [run.name for run in load_runs([stored, same])] == [str(stored), str(same)]


def test_requests_that_failed_are_left_out_and_absent_ones_are_none(stored: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (stored / "requests.jsonl").read_text().splitlines()]
    lines[4]["error"] = "out of memory"
    failed = copy(stored, tmp_path / "failed", "".join(json.dumps(line) + "\n" for line in lines))
    without = copy(stored, tmp_path / "without")
    one, two = load_runs([failed, without])
    assert one.records is not None and len(one.records) == 17 and two.records is None


@pytest.mark.parametrize(
    "requests",
    [pytest.param('{"prompt_id": ', id="cut"), pytest.param("{}\n", id="another"), pytest.param("3\n", id="3")],
)
def test_requests_that_are_none_are_one_line(stored: Path, tmp_path: Path, requests: str) -> None:
    spoiled = copy(stored, tmp_path / "spoiled", requests)
    with pytest.raises(InputError, match=r"requests\.jsonl is not the requests of a study") as caught:
        load_runs([stored, spoiled])
    assert "\n" not in str(caught.value)


def test_one_run_alone_and_a_missing_one_are_refused(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs 2 or more"):
        load_runs([stored])
    with pytest.raises(InputError, match="cannot read"):
        load_runs([stored, tmp_path / "nothing"])


def test_a_study_that_was_stopped_is_told_to_go_on(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_study(make_plan(tmp_path, **WITHOUT_SAMPLED), tmp_path / "out", resume=False, progress=Stopping("A/B/A", 2))
    with pytest.raises(InputError, match="has not finished; go on with it by --resume"):
        load_runs([stored, tmp_path / "out"])
