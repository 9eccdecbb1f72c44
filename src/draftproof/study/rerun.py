"""``draftproof rerun``: repeat a study from its stored plan, in a folder of its own. Judges nothing itself."""

from pathlib import Path
from typing import Any

from draftproof import evidence as ev
from draftproof.engines.digest import digest_of
from draftproof.errors import InputError, OutputError, PromptError
from draftproof.measure.stored import StoredRun, evidence_file, load_run, load_runs
from draftproof.study.lock import hash_of_prompts
from draftproof.study.plan import Plan, parse_plan
from draftproof.study.progress import Progress
from draftproof.study.reproduction import Reproduction, judge_rerun
from draftproof.study.run import run_study
from draftproof.workload.loaders import load_prompts


def rerun_folder(path: Path, out: Path | None) -> Path:
    """
    Return where a study is repeated: ``out``, or beside the study's folder, with "-rerun" behind its name.

    Raises
    ------
    OutputError
        It is the folder of the study itself.
    """
    folder = evidence_file(path).resolve().parent
    if out is None:
        return folder.with_name(f"{folder.name}-rerun")
    if out.resolve() == folder:
        raise OutputError(f"{out} is the folder of the study itself; choose another --out for its rerun")
    return out


def rerun_study(
    path: Path, out: Path, *, resume: bool, progress: Progress
) -> tuple[list[StoredRun], Reproduction, list[dict[str, Any]]]:
    """
    Repeat a study and write ``rerun.json`` beside the new evidence.

    Parameters
    ----------
    path : Path
        The study's folder or its evidence.json; nothing there is changed.
    out : Path
        As `rerun_folder` gives it.
    resume : bool
        Go on with the rerun that is in the folder.
    progress : Progress

    Returns
    -------
    list of StoredRun, Reproduction, list of request records
        Both runs, the first one first; what the second says of the first; the requests of the second.

    Raises
    ------
    DraftproofError
        The evidence cannot be repeated, its prompts are not there as they were, or what `run_study` raises.
    """
    plan = repeatable_plan(load_run(path).evidence, path)
    _, records = run_study(plan, out, resume=resume, progress=progress)
    runs = load_runs([path, out])
    found = judge_rerun(*runs)
    ev.write_whole(out / "rerun.json", found.model_dump_json(indent=2) + "\n")
    return runs, found, records


def repeatable_plan(evidence: ev.Evidence, path: Path) -> Plan:
    """
    Return the plan of stored evidence, if running it again would be the same study.

    Raises
    ------
    InputError
        The evidence was decided by other thresholds, or its plan was changed after the run.
    PromptError
        The prompts are not those of the first run.
    """
    study = evidence.study
    if not evidence.decision.registered:
        raise InputError(
            f"{path} was decided by other thresholds than the locked ones; give the evidence that the run wrote"
        )
    if digest_of(study.plan) != study.hash:
        raise InputError(f"{path} holds another plan than its hash {study.hash[:12]} says; give the evidence as it was")
    plan = parse_plan(study.plan, f"in {path}")
    prompts = hash_of_prompts(load_prompts(plan.workload.prompts, plan.workload.limit, plan.workload.seed))
    if prompts != study.prompts:
        raise PromptError(
            f"prompts '{plan.workload.prompts}' have the hash {prompts[:12]}, and {path} records "
            f"{study.prompts[:12] if study.prompts else 'none'}; bring them back as they were"
        )
    return plan
