"""Does each deciding module's own test file cover every branch of it?

    python -m tests.support.cover            # all modules of tiers 0 and 1 (make cover)
    python -m tests.support.cover quota sse  # some

A module's own files are `tests/unit/test_<module>.py` and `test_<module>_*.py`. Exit 1 if a branch
is not covered or a module has no file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.test_layering import DECIDES, PACKAGE, TIER

UNIT = Path(__file__).parents[1] / "unit"


def modules() -> list[str]:
    """The modules that decide; a package counts as one, a module without a function as none."""
    found = [name for name in TIER if TIER[name] <= DECIDES and "*" not in name]
    return [name for name in found if (PACKAGE / name).is_dir() or has_functions(name)]


def has_functions(name: str) -> bool:
    file = PACKAGE / f"{name}.py"
    return file.exists() and "def " in file.read_text(encoding="utf-8")


def own_files(name: str) -> list[Path]:
    # test_quota_days.py belongs to quota, test_config_files.py to config.
    return sorted([*UNIT.glob(f"test_{name}.py"), *UNIT.glob(f"test_{name}_*.py")])


def uncovered(name: str) -> str:
    """What coverage says, or "" if every branch is covered."""
    files = own_files(name)
    if not files:
        return f"{name}: expected tests/unit/test_{name}.py, got no such file"
    where = f"relayd/{name}/*" if (PACKAGE / name).is_dir() else f"relayd/{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "COVERAGE_FILE": f"{folder}/data"}
        run = ["run", "-m", "pytest", "-q", *map(str, files)]
        report = ["report", "--fail-under=100", f"--include={where}"]
        for arguments in (run, report):
            command = [sys.executable, "-m", "coverage", *arguments]
            done = subprocess.run(
                command, env=environ, cwd=PACKAGE.parent, capture_output=True, text=True
            )
            if done.returncode:
                return f"{name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return ""


def main(names: list[str]) -> int:
    faults = [fault for name in names or modules() if (fault := uncovered(name))]
    print("\n".join(faults) or "every branch is covered")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
