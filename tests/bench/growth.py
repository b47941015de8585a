"""How cost grows: with open streams, with connections, with TLS to the provider, with processes.

The gateway has core 0, its provider and the load have core 1. CPU is read from the process's own
clock, which counts nanoseconds: ten streams use less in a window than a tick of /proc/PID/stat.
Events and requests are those that loadgen has checked. Every figure is that of a fresh process.
nginx goes the same way beside: a curve is of relayd's making only where it is not nginx's too.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.real import free_port

from .footprint import rss, wait_for

LOOPS = ("asyncio", "uvloop")
YARDSTICK = "nginx"
GATEWAYS = (YARDSTICK, *LOOPS)

STREAMS = (10, 100, 1000, 2000, 4000)
CONNECTIONS = (1, 16, 100, 1000)

RATE = 5000
"""Events a second in all, however many streams they are spread over."""

FLAT = 0.10
"""How far a point may be from the median of its curve."""
STREAM_KIB = 25.0
"""KiB of RSS for an open stream."""
TLS_RATIO = 1.3
"""TLS to the provider, times plain."""
TWO_RATIO = 0.9
"""Work for a CPU second of two processes, times that of one."""

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
loop = "{loop}"
max_connections = 8192
max_exchanges = 8192
[breaker]
failures = 1000000
[[provider]]
name = "mock"
base_url = "{provider}/v1"
model = "mock"
{more}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What loadgen is told, and when its window opens and closes."""

    args: tuple[str, ...]
    count: str
    """The key of its result that counts the work."""
    size: int
    ramp: float = 0.0
    warm: float = 1.0
    measured: float = 3.0
    rate: float = 0.0
    """Events a second that are due; 0: as many as there can be."""

    def command(self, port: int) -> list[str]:
        command = ["-addr", f"127.0.0.1:{port}", "-c", str(self.size), "-timeout", "120s"]
        times = {"-ramp": self.ramp, "-warmup": self.warm, "-t": self.measured}
        command += [part for key, value in times.items() for part in (key, f"{value}s")]
        return [*command, *self.args]


def streams(size: int, events: int, gap_ms: int, ramp: float, measured: float) -> Load:
    """Streams that all begin before the window and end after it."""
    assert (ramp + 1.0 + measured) * 1000 < events * gap_ms
    spec = f"mode=sse,n={events},d={gap_ms}"
    args = ("-mode", "sse", "-spec", spec, "-n", str(events), "-d", f"{gap_ms}ms")
    return Load(args, "events", size, ramp, measured=measured, rate=size * 1000 / gap_ms)


def held(size: int) -> Load:
    """Two events a second each; the fewer they are the longer it takes to count enough."""
    return streams(size, 60, 500, max(1.0, size / 800), 10.0 if size < 100 else 5.0)


def steady(size: int) -> Load:
    """`RATE` events a second in all: only the number of streams differs."""
    ramp, measured, gap_ms = max(1.0, size / 800), 4.0, size * 1000 // RATE
    return streams(size, int((ramp + measured + 2) * 1000) // gap_ms + 1, gap_ms, ramp, measured)


def busy(size: int) -> Load:
    """Fifty events a second each."""
    return streams(size, 600, 20, 1.5, 4.0)


def asking(size: int) -> Load:
    """JSON requests, one after the other on every connection."""
    return Load(("-mode", "json", "-spec", "mode=json,size=1024"), "requests", size, size / 500)


@dataclass(frozen=True, slots=True)
class Point:
    """What one measurement found."""

    cost: float
    """Microseconds of CPU for an event or a request, over all gateways."""
    rss: int
    """Bytes of the first gateway, at the end of the window."""
    complaint: str = ""


class Bench:
    """A provider with plain and TLS ports, and gateways in front of it.

    `yardstick` is the runner's description of nginx.
    """

    def __init__(self, tools: Path, yardstick: Path, folder: Path) -> None:
        self.tools, self.folder = tools, folder
        self.yardstick = tomllib.loads(yardstick.read_text())
        self.plain, self.tls = free_port(), free_port()
        self.cert = folder / "provider.pem"

    @contextlib.contextmanager
    def provider(self) -> Iterator[None]:
        mock = str(self.tools / "mockllm")
        plain = [mock, "-addr", f"127.0.0.1:{self.plain}", "-addr2", ""]
        tls = [mock, "-tls", f"127.0.0.1:{self.tls}", "-cert-out", str(self.cert)]
        with child(1, plain), child(1, tls, stderr=subprocess.DEVNULL):
            wait_for(self.plain)
            wait_for(self.tls)
            yield

    @contextlib.contextmanager
    def gateway(self, kind: str, core: int, tls: bool) -> Iterator[tuple[int, int]]:
        """Its working process and its port."""
        port = free_port()
        start = self.nginx(port) if kind == YARDSTICK else self.relayd(port, kind, tls)
        with child(core, start) as process:
            wait_for(port)
            time.sleep(0.3)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield int(children[0]) if children else process.pid, port

    def relayd(self, port: int, loop: str, tls: bool) -> list[str]:
        """The command that starts it."""
        file = self.folder / f"relayd-{port}.toml"
        url = f"https://127.0.0.1:{self.tls}" if tls else f"http://127.0.0.1:{self.plain}"
        more = f'ca_file = "{self.cert}"' if tls else ""
        file.write_text(CONFIG.format(port=port, loop=loop, provider=url, more=more))
        return [sys.executable, "-m", "relayd", "serve", "-c", str(file)]

    def nginx(self, port: int) -> list[str]:
        """The command that starts it, as the runner does."""
        folder, provider = self.folder / f"nginx-{port}", f"127.0.0.1:{self.plain}"
        folder.mkdir()
        places = {"run": str(folder), "port": str(port), "primary": provider, "fallback": provider}

        def placed(text: str) -> str:
            for name, value in places.items():
                text = text.replace(f"{{{name}}}", value)
            return text

        for name, text in self.yardstick["files"].items():
            (folder / name).write_text(placed(text))
        return [placed(part) for part in self.yardstick["start"]]

    def measure(self, kind: str, load: Load, *, tls: bool = False, cores: int = 1) -> Point:
        """CPU for a unit of work of fresh gateways, one a core, each with this load."""
        with contextlib.ExitStack() as stack:
            gateways = [stack.enter_context(self.gateway(kind, n, tls)) for n in range(cores)]
            pids = [pid for pid, _ in gateways]
            loads = [
                stack.enter_context(
                    child(1, [str(self.tools / "loadgen"), *load.command(port)], subprocess.PIPE)
                )
                for _, port in gateways
            ]
            time.sleep(load.ramp + load.warm)
            began, before = time.monotonic(), sum(map(cpu, pids))
            time.sleep(load.measured - 0.1)  # loadgen must still be at it
            used = (sum(map(cpu, pids)) - before) / (time.monotonic() - began)
            resident = rss(pids[0])
            found = [json.loads(process.communicate(timeout=60)[0] or "{}") for process in loads]
        if not all(found):
            raise SystemExit("loadgen ended without a result; what it says is above")
        done = sum(result[load.count] / result["seconds"] for result in found)
        due = load.rate * cores
        complaint = f"{done:.0f} of {due:.0f} events/s" if done < 0.95 * due else ""
        errors = [result["errors"] for result in found if result["total_errors"]]
        complaint = f"errors {errors}" if errors else complaint
        return Point(used / done * 1e6 if done else float("nan"), resident, complaint)


def report(tools: Path, yardstick: Path, rounds: int) -> None:
    """Print all of it. Figures are medians of the rounds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # by way of `finally`
    most = (hard - 256) // 2  # a stream is two sockets of the gateway
    sizes = [size for size in STREAMS if size <= most]
    for size in sorted(set(STREAMS) - set(sizes)):
        print(f"{size} streams are left out: they need more than {hard} open files (ulimit -Hn)")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(tools, yardstick, Path(folder))
        with bench.provider():
            open_streams(bench, sizes, rounds)
            connections(bench, rounds)
            pairs(bench, rounds)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_streams(bench: Bench, sizes: list[int], rounds: int) -> None:
    points = curves(lambda kind, size: bench.measure(kind, steady(size)), sizes, rounds)
    show_curves(f"CPU per event, us, open streams, {RATE} events/s in all", points, sizes)
    points = curves(lambda kind, size: bench.measure(kind, held(size)), sizes, rounds)
    show_curves("CPU per event, us, open streams x 2/s", points, sizes)
    print("\n| RSS, MiB, open streams | asyncio | uvloop | goal |\n|---|---|---|---|")
    grown: dict[str, dict[int, float]] = {
        loop: {size: middle(points[loop, size], "rss") for size in sizes} for loop in LOOPS
    }
    for size in sizes:
        print(f"| {size} | " + " | ".join(f"{grown[x][size] / 2**20:.1f}" for x in LOOPS) + " | |")
    low, high = 1000, max(sizes)
    if low in sizes and high > low:
        cells = []
        for loop in LOOPS:
            kib = (grown[loop][high] - grown[loop][low]) / (high - low) / 1024
            cells.append(f"{kib:.1f} {verdict(kib <= STREAM_KIB)}")
        print(f"| KiB a stream, {low} to {high} | {' | '.join(cells)} | {STREAM_KIB:.0f} |\n")


def connections(bench: Bench, rounds: int) -> None:
    points = curves(lambda kind, size: bench.measure(kind, asking(size)), CONNECTIONS, rounds)
    show_curves("CPU per JSON request, us, connections", points, CONNECTIONS)


def pairs(bench: Bench, rounds: int) -> None:
    """TLS beside plain, two processes beside one."""
    print(
        "\n| pairs, us of CPU | loop | first | second | ratio | goal |\n|---|---|---|---|---|---|"
    )
    title = "event, 200 streams x 50/s: plain, TLS to the provider"
    for loop in LOOPS:
        plain = [bench.measure(loop, busy(200)) for _ in range(rounds)]
        tls = [bench.measure(loop, busy(200), tls=True) for _ in range(rounds)]
        first, second = middle(plain, "cost"), middle(tls, "cost")
        show_pair(title, loop, (first, second), second / first, TLS_RATIO)
        complain(title, [*plain, *tls])
    for title, whole, half in (
        ("JSON request: one process with 16 connections, two with 8 each", asking(16), asking(8)),
        ("event, x 50/s: one process with 200 streams, two with 100 each", busy(200), busy(100)),
    ):
        for loop in LOOPS:
            one = [bench.measure(loop, whole) for _ in range(rounds)]
            two = [bench.measure(loop, half, cores=2) for _ in range(rounds)]
            first, second = middle(one, "cost"), middle(two, "cost")
            show_pair(title, loop, (first, second), first / second, TWO_RATIO)
            complain(title, [*one, *two])
    print(
        "\nTwo processes: the second one shares its core with the load and the provider, so this "
        f"compares work per CPU second, not rates. {TWO_RATIO} x each means {2 * TWO_RATIO:.1f} x "
        "the work of one process, were both cores their own."
    )


Curves = dict[tuple[str, int], list[Point]]


def curves(measure: Callable[[str, int], Point], sizes: Iterable[int], rounds: int) -> Curves:
    """The points by gateway and size; the gateways take turns."""
    found: Curves = {}
    for _ in range(rounds):
        for size in sizes:
            for kind in GATEWAYS:
                found.setdefault((kind, size), []).append(measure(kind, size))
    return found


def show_curves(title: str, points: Curves, sizes: Iterable[int]) -> None:
    heads = " | ".join(f"{loop} | of its median | | x nginx" for loop in LOOPS)
    print(f"| {title} | nginx | of its median | {heads} |\n|---|---|---" + "|---" * 8 + "|")
    cost = {key: middle(found, "cost") for key, found in points.items()}
    usual = {kind: statistics.median(cost[kind, size] for size in sizes) for kind in GATEWAYS}
    for size in sizes:
        cells = [str(size)]
        for kind in GATEWAYS:
            found, ratio = cost[kind, size], cost[kind, size] / usual[kind]
            cells += [f"{found:.1f}", f"{ratio:.2f}"]
            if kind != YARDSTICK:
                times = found / cost[YARDSTICK, size]
                cells += [verdict(abs(ratio - 1) <= FLAT), f"{times:.2f}"]
        print("| " + " | ".join(cells) + " |")
    print("\nBelow 1 is cheaper: a busy process finds more to do each time that it wakes.")
    for (kind, size), found_points in points.items():
        complain(f"{title}, {kind}, {size}", found_points)


def show_pair(title: str, loop: str, costs: tuple[float, float], ratio: float, goal: float) -> None:
    """TLS may cost so much more, two processes must do so much for the same CPU."""
    more = goal > 1
    cells = [title, loop, *(f"{cost:.1f}" for cost in costs)]
    cells.append(f"{ratio:.2f} x {verdict(ratio <= goal if more else ratio >= goal)}")
    cells.append(f"{'cost <=' if more else 'work >='} {goal} x")
    print("| " + " | ".join(cells) + " |")


def complain(title: str, points: Iterable[Point]) -> None:
    """Say on stderr what makes a figure doubtful."""
    for point in points:
        if point.complaint:
            print(f"doubtful: {title}: {point.complaint}", file=sys.stderr)


def middle(points: Iterable[Point], field: str) -> float:
    return float(statistics.median(getattr(point, field) for point in points))


def verdict(good: bool) -> str:
    return "ok" if good else "MISSED"


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used, threads included, from its clock."""
    return time.clock_gettime((~pid << 3) | 2)


@contextlib.contextmanager
def child(
    core: int, command: list[str], stdout: int = subprocess.DEVNULL, stderr: int | None = None
) -> Iterator[subprocess.Popen[Any]]:
    """A process on a core, which ends with this block, and with us if we are killed."""
    pinned = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core), *command]
    process = subprocess.Popen(pinned, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(3.0)
        finally:
            process.kill()
            process.wait()
