"""The commands as processes: what they print, what they leave on stderr, how they exit."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders, real
from tests.support.certificates import Authority
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import breaks_off, ok, ok_stream, refusing, status

KEY = "sk-canary-0123456789abcdef"


class Result:
    """A command that has ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out.decode()
        self.err = err.decode()
        assert KEY not in self.out + self.err
        assert "Traceback" not in self.out + self.err

    @property
    def trace(self) -> Any:
        """The last line on stderr."""
        return json.loads(self.err.splitlines()[-1])


async def run(*arguments: str, stdin: bytes = b"", **env: str) -> Result:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relayd", *arguments),
        env={"PATH": "/usr/bin:/bin", "KEY": KEY, **env},
        cwd=real.PROJECT,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    out, err = await process.communicate(stdin)
    return Result(process.returncode or 0, out, err)


def config_file(folder: Path, *providers: ScriptedProvider | str, more: str = "") -> str:
    tables = [each if isinstance(each, str) else table(each) for each in providers]
    file = folder / "config.toml"
    file.write_text("\n".join([more, *tables]))
    return str(file)


def table(provider: ScriptedProvider) -> str:
    rows = [f"{name} = {toml(value)}" for name, value in provider.table.items()]
    return "\n".join(["[[provider]]", *rows, ""])


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + " }"
    return json.dumps(value)


def request_file(folder: Path, **more: Any) -> str:
    file = folder / "request.json"
    file.write_text(json.dumps(builders.chat(**more)))
    return str(file)


# ---- help


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve", ["SIGUSR2", "--listen ADDR", "$RELAYD_CONFIG", "PROVIDER, FALLBACK"]),
        ("check", ["every problem at once", "--online", "$CONFIGURATION_DIRECTORY"]),
        ("send", ["REQUEST.json", "chat, completions, embeddings", "--trace FILE"]),
        ("demo", ["a working backup"]),
        ("healthcheck", ["--url URL", "unix:/path"]),
        ("top", ["admin.listen", "--url URL", "--once"]),
    ],
)
async def test_help_says_what_a_command_does_and_needs(command: str, words: list[str]) -> None:
    result = await run(command, "--help", COLUMNS="200", LC_ALL="C")
    assert (result.code, result.err) == (0, "")
    for each in words:
        assert each in result.out
    assert result.out.isascii()


# ---- demo


async def test_the_demonstration_prints_one_failover_and_the_streamed_text() -> None:
    result = await run("demo")
    assert result.code == 0
    assert result.out.splitlines() == [
        "HTTP 200",
        "ATTEMPTS 2",
        "PROVIDER backup",
        "The primary was down; the backup answered.",
    ]
    assert result.err == ""


async def test_an_interrupted_demonstration_ends_in_silence() -> None:
    async with real.relayd("demo") as running:
        await running.line(lambda line: "PROVIDER" in line)
        running.signal(signal.SIGINT)
        assert await running.ended() == 1
    assert running.err == []


# ---- standard streams

FULL = "relayd: stdout: cannot be written: no space left on device"
GOOD = '[[provider]]\nname = "ollama"\n'


async def redirected(command: str, more: str) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a command whose streams a shell has redirected."""
    process = await asyncio.create_subprocess_shell(
        f"exec {sys.executable} -m relayd {command} {more}",
        stderr=asyncio.subprocess.PIPE,
        cwd=real.PROJECT,
    )
    _, err = await process.communicate()
    return process.returncode or 0, err.decode().splitlines()


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("--version", ""), ("--help", ""), ("check", ""), ("check", "1"), ("demo", "")],
)
async def test_a_full_disk_under_stdout_is_one_line(
    command: str, unbuffered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    monkeypatch.setenv("RELAYD_CONFIG", config_file(tmp_path, GOOD))
    code, err = await redirected(command, ">/dev/full")
    assert (code, err) == (1, [FULL])


async def test_what_the_encoding_of_stdout_does_not_have_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "\N{SNOWMAN}").mkdir()
    file = config_file(tmp_path / "\N{SNOWMAN}", GOOD)
    found = await run("check", "-c", file, PYTHONIOENCODING="latin-1")
    assert (found.code, found.err) == (0, "")
    assert "/?/config.toml: ok" in found.out


async def test_a_full_disk_under_stdout_fails_who_asks_a_daemon(
    tmp_path: Path, free_port: int
) -> None:
    text = f'server.listen = "127.0.0.1:{free_port}"\nadmin.listen = "unix:{tmp_path}/a"\n'
    async with real.daemon(tmp_path, text + GOOD, ("127.0.0.1", free_port)):
        for command in ("healthcheck", "top --once"):
            found = await redirected(f"{command} -c {tmp_path}/config.toml", ">/dev/full")
            assert found == (1, [FULL])


async def test_send_tells_a_full_disk_before_its_trace(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a:
        file, request = config_file(tmp_path, a), request_file(tmp_path)
        code, (line, trace) = await redirected(f"send -c {file} {request}", ">/dev/full")
    assert (code, line) == (1, FULL)
    assert json.loads(trace)["status"] == 200


async def test_send_works_without_any_standard_stream(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a:
        file, request, trace = config_file(tmp_path, a), request_file(tmp_path), tmp_path / "trace"
        command = f"send -c {file} --trace {trace} {request}"
        assert await redirected(command, "<&- >&- 2>&-") == (0, [])
    assert json.loads(trace.read_text())["status"] == 200


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_daemon_serves_without_any_standard_stream(
    loop: str, tmp_path: Path, free_port: int
) -> None:
    text = f'[server]\nloop = "{loop}"\nlisten = "127.0.0.1:{free_port}"\n'
    file = config_file(tmp_path, GOOD, more=text)
    command = f"exec {sys.executable} -m relayd serve -c {file} <&- >&- 2>&-"
    async with real.program("sh", "-c", command) as running:
        await running.answers(("127.0.0.1", free_port))


# ---- healthcheck


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::]"])
async def test_a_running_daemon_is_healthy(host: str, tmp_path: Path, free_port: int) -> None:
    text = f'[server]\nlisten = "{host}:{free_port}"\n[[provider]]\nname = "ollama"\n'
    reached = ("::1" if host == "[::]" else "127.0.0.1", free_port)
    async with real.daemon(tmp_path, text, reached):
        result = await run("healthcheck", "-c", str(tmp_path / "config.toml"))
        shown = f"[{reached[0]}]" if ":" in reached[0] else reached[0]
        by_url = await run("healthcheck", "--url", f"http://{shown}:{free_port}")
    assert (result.code, result.out, result.err) == (0, "ok\n", "")
    assert by_url.code == 0


async def test_a_daemon_on_a_unix_socket_is_healthy(tmp_path: Path) -> None:
    path = tmp_path / "relayd.sock"
    text = f'[server]\nlisten = "unix:{path}"\n[[provider]]\nname = "ollama"\n'
    async with real.daemon(tmp_path, text, str(path)):
        result = await run("healthcheck", "-c", str(tmp_path / "config.toml"))
        by_url = await run("healthcheck", "--url", f"unix:{path}")
    assert (result.code, by_url.code) == (0, 0)


async def test_a_daemon_of_the_environment_is_healthy(free_port: int) -> None:
    env = {"PROVIDER": "ollama", "OLLAMA_MODEL": "m", "PORT": str(free_port)}
    async with real.relayd("serve", "--env", env=env) as daemon:
        await daemon.answers(("127.0.0.1", free_port))
        result = await run("healthcheck", "--env", **env)
    assert result.code == 0


async def test_a_configuration_that_cannot_be_read_is_exit_1_too(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[[provider]]\nname = "groq"\nkey_evn = "KEY"\n')
    result = await run("healthcheck", "-c", str(tmp_path / "config.toml"))
    assert (result.code, result.out) == (1, "")
    assert "provider[groq].key_evn: unknown key" in result.err


async def test_a_daemon_is_asked_without_the_secrets_that_only_it_sees(
    tmp_path: Path, free_port: int
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'server.listen = "127.0.0.1:{free_port}"\nadmin.listen = "unix:{tmp_path}/none"\n'
        'store.url_env = "NOT_SET"\n'
        '[[provider]]\nname = "groq"\nkey_env = "NOT_SET"\n'
        '[[provider]]\nname = "xai"\nkey_credential = "xai"\n'
        '[[client]]\nname = "c"\nkey_file = "/not/there"\n'
    )
    asked = await run("healthcheck", "-c", str(file))
    shown = await run("top", "--once", "-c", str(file))
    assert asked.err == f"relayd: no answer from 127.0.0.1:{free_port}: connection refused\n"
    assert shown.err.startswith(f"relayd: no answer from unix:{tmp_path}/none: no such file")
    assert (asked.code, shown.code) == (1, 1)


async def test_nobody_there_is_one_line_and_exit_1(free_port: int) -> None:
    result = await run("healthcheck", "--url", f"http://127.0.0.1:{free_port}")
    assert (result.code, result.out) == (1, "")
    assert result.err == f"relayd: no answer from 127.0.0.1:{free_port}: connection refused\n"


async def test_another_status_is_not_healthy() -> None:
    async with Plain(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n") as port:
        result = await run("healthcheck", "--url", f"http://127.0.0.1:{port}")
    assert result.code == 1
    assert "status 503" in result.err


async def test_what_is_no_http_is_not_healthy() -> None:
    async with Plain(b"220 smtp ready\r\n\r\n") as port:
        result = await run("healthcheck", "--url", f"http://127.0.0.1:{port}")
    assert result.code == 1
    assert "not an HTTP/1.x status line" in result.err


async def test_tls_that_fails_says_so(tmp_path: Path) -> None:
    async with Plain(b"HTTP/1.1 400 No\r\n\r\n") as port:
        plain = await run("healthcheck", "--url", f"https://127.0.0.1:{port}")
    async with ScriptedProvider(tls=Authority(tmp_path).server(), name="a") as a:
        url = f"https://127.0.0.1:{a.address[1]}"
        stranger = await run("healthcheck", "--url", url)
    assert (plain.code, stranger.code) == (1, 1)
    assert "no answer from 127.0.0.1:" in plain.err
    assert ": TLS fails: " in plain.err
    assert ": its certificate is refused: " in stranger.err


async def test_silence_ends_after_two_seconds() -> None:
    async with Plain(b"") as port:
        result = await run("healthcheck", "--url", f"http://127.0.0.1:{port}")
    assert result.code == 1
    assert "within 2 s" in result.err


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://h:abc", "http://h:0", "http://h:65536", "http://[::1", ""]
)
async def test_a_wrong_url_is_told_with_its_option(url: str) -> None:
    result = await run("healthcheck", "--url", url)
    assert (result.code, result.out) == (1, "")
    expected = "http://host:port, https://host or unix:/path"
    assert result.err == f"relayd: --url: expected {expected}, got {url!r}\n"


async def test_an_empty_name_of_a_file_is_not_the_default() -> None:
    result = await run("check", "-c", "")
    assert result.code == 78
    assert result.err.startswith("'': cannot be read: ")
    assert result.err.endswith("; name the file with -c or RELAYD_CONFIG\n")


class Plain:
    """A server that answers every connection with these bytes, or with silence."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._data)
        await reader.read()
        writer.close()


# ---- send


async def test_send_writes_the_answer_and_its_trace(tmp_path: Path) -> None:
    first = ScriptedProvider(status(503), name="a", query={"v": "1"}, key_env="KEY")
    async with first as a, ScriptedProvider(ok("hi"), name="b") as b:
        file, url = config_file(tmp_path, a, b), f"{a.base_url}/chat/completions"
        result = await run("send", "-c", file, request_file(tmp_path))
    assert result.code == 0
    assert json.loads(result.out) == builders.completion("hi")
    trace = result.trace
    assert trace["status"] == 200
    assert trace["provider"] == "b"
    assert trace["duration_ms"] > 0
    assert [(t["provider"], t["status"], t["outcome"]) for t in trace["attempts"]] == [
        ("a", 503, "server_error"),
        ("b", 200, "ok"),
    ]
    assert trace["attempts"][0]["url"] == url
    warning = json.loads(result.err.splitlines()[0])
    assert (warning["level"], warning["event"]) == ("warning", "attempt_failed")


async def test_send_writes_a_stream_as_it_arrives(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        await peer.chunk(builders.delta("one"))
        await go_on.wait()
        await peer.chunk(builders.finish() + builders.DONE)
        await peer.last_chunk()

    async with ScriptedProvider(script) as a:
        file, request = config_file(tmp_path, a), request_file(tmp_path, stream=True)
        async with real.relayd("send", "-c", file, request) as running:
            await running.line(lambda line: "one" in line)
            go_on.set()
            assert await running.ended() == 0
    assert running.out[-2:] == ["data: [DONE]", ""]


async def test_send_reads_stdin_and_takes_surface_user_and_trace_file(tmp_path: Path) -> None:
    async with ScriptedProvider(status(200, {"data": [1]}), surfaces=["embeddings"]) as a:
        file, trace = config_file(tmp_path, a), tmp_path / "trace.json"
        options = ["--surface", "embeddings", "--user", "ann", "--trace", str(trace)]
        body = builders.encode(builders.embeddings())
        result = await run("send", "-c", file, *options, "-", stdin=body)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {"data": [1]}
    assert json.loads(trace.read_text())["provider"] == "a"
    assert a.requests[0].target == "/v1/embeddings"


async def test_send_asks_nobody_where_its_trace_cannot_be_written(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a:
        file, request = config_file(tmp_path, a), request_file(tmp_path)
        result = await run("send", "-c", file, request, "--trace", str(tmp_path / "no" / "trace"))
        assert result.code == 1
        assert result.err.endswith("/no/trace: cannot be written: no such file or directory\n")
        assert a.connections == 0


async def test_send_counts_no_turn_and_asks_no_shared_store(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    more = f'[quota]\ndaily_turns = 1\n[store]\nurl = "sqlite:{store}"\non_failure = "deny"\n'
    async with ScriptedProvider(ok()) as a:
        file, request = config_file(tmp_path, a, more=more), request_file(tmp_path)
        results = [await run("send", "-c", file, request) for _ in range(2)]
    assert [result.code for result in results] == [0, 0]
    assert not store.exists()


async def test_send_fails_when_every_provider_fails(tmp_path: Path) -> None:
    async with ScriptedProvider(status(500)) as a:
        result = await run("send", "-c", config_file(tmp_path, a), request_file(tmp_path))
    assert result.code == 1
    assert json.loads(result.out)["error"]["code"] == "upstream_error"
    assert result.trace["status"] == 502
    assert result.trace["provider"] is None


@pytest.mark.parametrize("tail", [b"", b'data: {"choi'])
async def test_send_fails_when_the_answer_breaks_off(tail: bytes, tmp_path: Path) -> None:
    script = breaks_off(builders.delta("one") + tail, then="rst")
    async with ScriptedProvider(script) as a:
        file = config_file(tmp_path, a)
        result = await run("send", "-c", file, request_file(tmp_path, stream=True))
    assert result.code == 1
    assert result.out.startswith(builders.delta("one").decode())
    assert result.trace["status"] == 200
    told = json.loads(result.err.splitlines()[0])
    assert (told["level"], told["event"]) == ("warning", "broke_off")
    assert told["message"] == "the answer broke off: upstream_truncated"


async def test_send_of_what_is_no_request_says_why(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a:
        file = config_file(tmp_path, a)
        result = await run("send", "-c", file, "-", stdin=b"{}")
        missing = await run("send", "-c", file, str(tmp_path / "nothing.json"))
        surface = await run("send", "-c", file, "-", "--surface", "smell")
    assert result.code == 1
    assert "messages" in json.loads(result.out)["error"]["message"]
    assert result.trace == {"status": 400, "attempts": [], "provider": None, "duration_ms": 0.0}
    assert missing.code == 1
    assert "nothing.json: cannot be read: no such file" in missing.err
    assert surface.code == 2
    assert "expected one of chat, completions" in surface.err


async def test_send_ends_when_nobody_reads(tmp_path: Path) -> None:
    async with ScriptedProvider(ok_stream(*["x" * 1000] * 500)) as a:
        file, request = config_file(tmp_path, a), request_file(tmp_path, stream=True)
        command = f"{sys.executable} -m relayd send -c {file} {request}; echo code $? >&2"
        process = await asyncio.create_subprocess_shell(
            f"({command}) | head -c 1 >/dev/null",
            stderr=asyncio.subprocess.PIPE,
            cwd=real.PROJECT,
        )
        _, err = await process.communicate()
    lines = err.decode().splitlines()
    assert lines[0] == "relayd: stdout: cannot be written: broken pipe"
    assert json.loads(lines[1])["status"] == 200
    assert lines[2:] == ["code 1"]


# ---- check --online


def models(count: int = 2) -> Any:
    return status(200, {"object": "list", "data": [{"id": f"m{n}"} for n in range(count)]})


async def test_each_provider_has_one_line_and_all_are_good(tmp_path: Path) -> None:
    tls = Authority(tmp_path)
    settings = {"key_env": "KEY", "query": {"v": "1"}, "headers": {"X-Own": "yes"}}
    first = ScriptedProvider(models(), name="a", **settings)
    second = ScriptedProvider(models(3), name="b", tls=tls.server(), ca_file=tls.ca_file)
    claude = {"kind": "anthropic", "key_env": "KEY", "surfaces": ["messages"]}
    third = ScriptedProvider(models(1), name="c", **claude)
    async with first as a, second as b, third as c:
        result = await run("check", "--online", "-c", config_file(tmp_path, a, b, c))
    assert result.out.splitlines() == [
        "a: reachable without TLS, credential good, 2 models",
        "b: reachable, TLS good, no credential sent, 3 models",
        "c: reachable without TLS, credential good, 1 model",
    ]
    assert result.code == 0
    asked = a.requests[0]
    assert (asked.method, asked.target) == ("GET", "/v1/models?v=1")
    assert asked.field("authorization") == f"Bearer {KEY}"
    assert asked.field("x-own") == "yes"
    assert c.requests[0].field("x-api-key") == KEY
    assert c.requests[0].field("anthropic-version") == "2023-06-01"


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (status(401), 1, "credential refused (status 401): check "),
        (status(403), 1, "credential refused (status 403): check "),
        (status(503), 1, "answers with status 503; the provider is at its limit or in trouble: as"),
        (status(429), 1, "answers with status 429; the provider is at its limit or in trouble: as"),
        (status(402), 1, "answers with status 402; add credit to the account"),
        (status(302), 1, "answers with status 302; check base_url: redirects are never followed"),
        (status(400), 1, "answers with status 400; check base_url, such as https for http"),
        (status(404), 0, "no model list here"),
        (status(200, b"<html>"), 0, "credential good"),
        (status(200, {"data": 7}), 0, "credential good"),
    ],
)
async def test_an_answer_that_is_no_model_list_is_named(
    script: Any, code: int, words: str, tmp_path: Path
) -> None:
    async with ScriptedProvider(script, key_env="KEY") as a:
        result = await run("check", "--online", "-c", config_file(tmp_path, a))
    assert result.code == code
    assert words in result.out


async def test_every_key_of_a_provider_is_tried(tmp_path: Path) -> None:
    provider = ScriptedProvider(models(), status(401), key_env=["KEY", "SECOND"])
    async with provider as a:
        file = config_file(tmp_path, a)
        result = await run("check", "--online", "-c", file, SECOND="sk-second-0123456789")
    assert result.code == 1
    assert "SECOND" in result.out
    assert "sk-second" not in result.out


async def test_what_cannot_be_reached_is_named_with_the_remedy(tmp_path: Path) -> None:
    tls = Authority(tmp_path)
    unknown = ScriptedProvider(models(), name="b", tls=tls.server())
    misnamed = ScriptedProvider(
        models(), name="d", tls=tls.server("other.test"), ca_file=tls.ca_file
    )
    secure = ScriptedProvider(models(), name="e", tls=tls.server())

    async def plain_text(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    plain = ScriptedProvider(connection=plain_text, name="c")
    with refusing() as (host, port):
        async with unknown as b, plain as c, misnamed as d, secure as e:
            nobody = f'[[provider]]\nname = "a"\nbase_url = "http://{host}:{port}/v1"\n'
            wrong = table(c).replace("http:", "https:")
            bare = table(e).replace("https:", "http:")
            file = config_file(tmp_path, nobody, b, wrong, d, bare)
            result = await run("check", "--online", "-c", file)
    lines = result.out.splitlines()
    assert result.code == 1
    assert lines[0] == "a: not reachable: connection refused; check base_url"
    assert lines[1].startswith("b: reachable, but its certificate is refused: ")
    assert lines[1].endswith("; check ca_file")
    assert lines[2].startswith("c: reachable, but TLS fails: ")
    assert lines[3].startswith("d: reachable, but its certificate is refused: ")
    assert lines[3].endswith("for '127.0.0.1'; check base_url and tls_server_name")
    assert lines[4].startswith("e: connected, but no answer: ")
    assert lines[4].endswith("; check base_url, such as https for http")


async def test_a_provider_that_never_connects_is_bounded_by_its_clock(tmp_path: Path) -> None:
    async def stall(peer: Peer) -> None:
        await peer.stall()

    async with ScriptedProvider(connection=stall, name="a", connect=0.3) as a:
        secure = table(a).replace("http:", "https:")
        result = await run("check", "--online", "-c", config_file(tmp_path, secure))
    assert result.code == 1
    assert "no connection within 0.3 s" in result.out


async def test_an_answer_that_stops_is_told(tmp_path: Path) -> None:
    async def half(peer: Peer, _: Request) -> None:
        await peer.head(200, [("Content-Length", "10")])
        await peer.fin()

    async with ScriptedProvider(half) as a:
        result = await run("check", "--online", "-c", config_file(tmp_path, a))
    assert result.code == 1
    assert "no answer: closed in the middle" in result.out


# ---- starting


@pytest.mark.parametrize("module", ["relayd.cli", "relayd.daemon"])
def test_serving_loads_nothing_that_only_others_need(module: str) -> None:
    import subprocess

    code = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    others = {"asgi", "embed", "demo", "send", "online", "healthcheck"}
    others |= {"queuesink", "asgisink", "wholeevents"}
    assert not loaded & {f"relayd.{name}" for name in others}
    watched = {"admin", "status", "statuspage", "picture", "tally", "metrics", "gauges"}
    assert not loaded & {f"relayd.{name}" for name in watched}
    assert not loaded & {"redis", "prometheus_client", "uvloop", "sqlite3", "zoneinfo", "email"}
