"""The files under systemd/, judged by the programs that will read them."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import trustme

from relayd import activation
from tests.support.client import RawClient, Response
from tests.support.provider import ScriptedProvider
from tests.support.real import NGINX, PROJECT, Running, free_port, need, nginx
from tests.support.scripts import ok_json, status

SYSTEMD = PROJECT / "systemd"
SERVICES = ["relayd.service", "relayd@.service"]
UNITS = [*SERVICES, "relayd.socket", "relayd@.socket"]
ADMIN = "relayd-admin@.socket"
PROGRAM = "/opt/relayd/venv/bin/relayd"
MOST_EXPOSED = 15
"""Ten times the exposure that `systemd-analyze security` may find."""


async def run(program: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a program that is needed here."""
    running = await Running.start(need(program), *arguments)
    return await running.ended(), running.output


def settings(unit: str) -> dict[str, list[str]]:
    """The settings of a unit, whatever their section; a repeated one has several values."""
    found: dict[str, list[str]] = {}
    for line in (SYSTEMD / unit).read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def default(key: str) -> float:
    """A number from the configuration reference, where defaults are commented out."""
    found = re.search(rf"(?m)^#?{key} = ([0-9.]+)", (PROJECT / "config.example.toml").read_text())
    assert found, f"config.example.toml: {key} is not there"
    return float(found[1])


# ---- units


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies whose program exists here; templates also as their instance 1."""
    for name in (*UNITS, ADMIN):
        text = (SYSTEMD / name).read_text().replace(PROGRAM, "/bin/true")
        for copy in (name, name.replace("@.", "@1.")):
            (tmp_path / copy).write_text(text)
    return tmp_path


INSTANCES = ["relayd@1.service", "relayd@1.socket", "relayd-admin@1.socket"]


@pytest.mark.parametrize("unit", [*UNITS, *INSTANCES])
async def test_systemd_reads_each_unit_without_a_warning(units: Path, unit: str) -> None:
    judge = ("verify", "--recursive-errors=no", "--man=no", str(units / unit))
    code, output = await run("systemd-analyze", *judge)
    assert (code, output) == (0, "")


async def test_a_misspelt_key_would_be_seen(units: Path) -> None:
    unit = units / "relayd.service"
    unit.write_text(unit.read_text().replace("WatchdogSec", "WatchDogSec"))
    code, output = await run(
        "systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(unit)
    )
    assert code != 0
    assert "WatchDogSec" in output


@pytest.mark.parametrize("unit", SERVICES)
async def test_a_service_exposes_little(units: Path, unit: str) -> None:
    judge = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(units / unit))
    code, output = await run("systemd-analyze", *judge)
    assert code == 0, output


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_stops_by_what_relayd_promises(unit: str) -> None:
    given = settings(unit)
    assert given["Type"] == ["notify"]
    assert given["KillMode"] == ["control-group"]
    assert given["RestartPreventExitStatus"] == ["78"]
    assert float(given["TimeoutStopSec"][0]) > default("drain_timeout")


@pytest.mark.parametrize("unit", SERVICES)
def test_a_reload_checks_the_file_that_is_served_before_the_signal(unit: str) -> None:
    given = settings(unit)
    (serve,) = given["ExecStart"]
    check, signal = given["ExecReload"]
    assert check == serve.replace(" serve ", " check ")
    assert signal == "/bin/kill -HUP $MAINPID"


def test_an_instance_differs_from_the_single_service_only_where_it_must() -> None:
    one, many = settings(SERVICES[0]), settings(SERVICES[1])
    differ = {name for name in one.keys() | many.keys() if one.get(name) != many.get(name)}
    assert differ == {"Description", "Requires", "After", "RuntimeDirectory", "SyslogIdentifier"}


def test_each_instance_has_an_admin_listener_of_its_own() -> None:
    given = settings(ADMIN)
    assert given["ListenStream"] == ["127.0.0.1:909%i"]
    assert given["FileDescriptorName"] == [activation.ADMIN]
    assert given["Service"] == ["relayd@%i.service"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_socket_does_not_lie_where_a_stopping_service_removes_it(unit: str) -> None:
    sockets = settings(unit.replace(".service", ".socket"))["ListenStream"]
    removed = settings(unit.replace(".socket", ".service"))["RuntimeDirectory"][0]
    assert not [path for path in sockets if path.startswith(f"/run/{removed}/")]


# ---- nginx


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def site(folder: Path, authority: trustme.CA, port: int, upstream: str) -> str:
    """The sample with this machine's paths; everything else as it is shipped."""
    authority.issue_cert("llm.example.com").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "both.pem")
    )
    text = (SYSTEMD / "nginx.conf.example").read_text()
    text = re.sub(r"/etc/ssl/[\w./]+\.pem", str(folder / "both.pem"), text)
    text = re.sub(r"(?m)^ +listen \[::\].*\n", "", text)
    return text.replace("listen 443", f"listen 127.0.0.1:{port}").replace(
        "unix:/run/relayd.sock", upstream
    )


class Front:
    """nginx as the sample says, and a client that believes its certificate."""

    def __init__(self, port: int, authority: trustme.CA) -> None:
        self.address = ("127.0.0.1", port)
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        authority.configure_trust(self.tls)

    def client(self) -> RawClient:
        return RawClient(self.address, tls=self.tls)

    async def post(
        self, path: str = "/v1/x", body: bytes = b"{}", fields: Mapping[str, str] | None = None
    ) -> Response:
        async with self.client() as client:
            return await client.post_json(path, body, fields)


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedProvider]:
    """In relayd's place: what matters here is what arrives and what of it nginx passes on."""
    async with ScriptedProvider(ok_json("hi"), name="relayd") as peer:
        yield peer


@pytest.fixture
async def front(
    tmp_path: Path, authority: trustme.CA, relay: ScriptedProvider
) -> AsyncIterator[Front]:
    host, port = relay.address
    own = free_port()
    sample = site(tmp_path, authority, own, f"{host}:{port}")
    async with nginx(tmp_path, sample, ("127.0.0.1", own)):
        yield Front(own, authority)


def error_of(answer: Response) -> tuple[int, str | None, str]:
    """Status, media type and the error's code; all four fields must be there."""
    assert set(answer.error) == {"message", "type", "param", "code"}
    return answer.status, answer.field("Content-Type"), answer.error["code"]


@pytest.mark.parametrize("several", [False, True], ids=["one process", "several processes"])
async def test_nginx_takes_the_sample(tmp_path: Path, authority: trustme.CA, several: bool) -> None:
    sample = site(tmp_path, authority, free_port(), "unix:/run/relayd.sock")
    if several:
        sample = re.sub(r"(?m)^( +)(server unix:/run/relayd.sock)", r"\1#\2", sample)
        sample = re.sub(r"(?m)^( +)#(server unix:/run/relayd-|least_conn)", r"\1\2", sample)
        assert "\n    server unix:/run/relayd-2.sock" in sample
    file = tmp_path / "nginx.conf"
    file.write_text(NGINX.format(folder=tmp_path, http=sample, user=""))
    code, output = await run("nginx", "-t", "-p", str(tmp_path), "-e", "stderr", "-c", str(file))
    assert code == 0, output
    assert "[warn]" not in output.replace('the "user" directive', "")


async def test_requests_arrive_as_http_1_1_on_a_connection_that_stays(
    front: Front, relay: ScriptedProvider
) -> None:
    for _ in range(3):
        assert (await front.post("/v1/chat/completions?x=1")).status == 200
    assert {request.version for request in relay.requests} == {"HTTP/1.1"}
    assert "connection" not in relay.requests[0].names()
    assert relay.connections == 1


async def test_what_a_client_says_about_itself_is_not_believed(
    front: Front, relay: ScriptedProvider
) -> None:
    forged = {"X-User-Id": "admin", "X-Forwarded-For": "9.9.9.9", "X-Request-ID": "mine"}
    await front.post(fields={**forged, "Forwarded": "for=9.9.9.9", "Authorization": "Bearer k"})
    (request,) = relay.requests
    assert request.field("X-User-Id") is None
    assert request.field("Forwarded") is None
    assert request.field("X-Forwarded-For") == "127.0.0.1"
    assert re.fullmatch("[0-9a-f]{32}", request.field("X-Request-ID") or "")
    assert request.field("Authorization") == "Bearer k"


@pytest.mark.parametrize("path", ["/", "/healthz", "/health", "/metrics", "/status", "/v1"])
async def test_only_the_api_is_for_the_world(
    front: Front, relay: ScriptedProvider, path: str
) -> None:
    assert error_of(await front.post(path)) == (404, "application/json", "not_found")
    assert relay.requests == []


async def test_a_body_beyond_the_limit_is_refused_in_json(front: Front) -> None:
    answer = await front.post(body=b"x" * 1_100_000)
    assert error_of(answer) == (413, "application/json", "request_too_large")


@pytest.mark.parametrize(
    "request_",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /v1/x HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n",
    ],
    ids=["no HTTP", "no Host", "too long"],
)
async def test_what_is_not_http_is_refused_in_json(front: Front, request_: bytes) -> None:
    async with front.client() as client:
        await client.send(request_)
        answer = await client.response()
    assert error_of(answer) == (400, "application/json", "bad_request")


async def test_without_relayd_the_client_is_told_in_json_to_come_again(
    front: Front, relay: ScriptedProvider
) -> None:
    relay.stop_listening()
    answer = await front.post()
    assert error_of(answer) == (503, "application/json", "overloaded")
    assert answer.field("Retry-After") == "1"


@pytest.mark.parametrize("code", [400, 404, 413, 500, 502, 503, 504])
async def test_errors_of_relayd_pass_untouched(
    tmp_path: Path, authority: trustme.CA, code: int
) -> None:
    own = {"error": {"message": "mine", "type": "t", "param": None, "code": "mine"}}
    async with ScriptedProvider(status(code, own), name="relayd") as relay:
        host, port = relay.address
        listen = free_port()
        sample = site(tmp_path, authority, listen, f"{host}:{port}")
        async with nginx(tmp_path, sample, ("127.0.0.1", listen)):
            answer = await Front(listen, authority).post()
    assert (answer.status, answer.json()) == (code, own)


def test_the_sample_leaves_relayd_the_last_word() -> None:
    text = (SYSTEMD / "nginx.conf.example").read_text()
    seconds = {name: float(value) for name, value in re.findall(r"(\w+_timeout) +(\d+)s;", text)}
    (largest,) = re.findall(r"client_max_body_size (\d+)m;", text)
    in_upstream = float(re.findall(r"keepalive_timeout (\d+)s;", text)[0])
    assert seconds["proxy_read_timeout"] > default("deadline")
    assert int(largest) * 2**20 >= default("max_request_bytes")
    assert in_upstream < default("idle_timeout")
