"""The web config file: its keys, its files, and serving with it."""

import asyncio
import socket
import ssl
import tracemalloc
from pathlib import Path

import bcrypt
import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from exporter import connection
from exporter.cli import main
from exporter.files import file_version
from exporter.schema import Scrape
from exporter.tls import client_context
from exporter.webconfig import BadWebConfigError, Web, read_web_config
from tests.certificates import Authority, Pair
from tests.sidecar import eventually
from tests.sites import site

SECRET = "correct horse"
HASH = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def written(folder: Path, text: str) -> Path:
    path = folder / "web.yaml"
    path.write_text(text)
    return path


def tls_text(pair: Pair, more: str = "") -> str:
    return f"tls_server_config:\n  cert_file: {pair.certificate}\n  key_file: {pair.key}\n{more}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tls_config: {}", "tls_config: unknown setting"),
        (
            "tls_server_config: {cert_file: a, key_file: b, curve_preferences: []}",
            "tls_server_config.curve_preferences: unknown setting",
        ),
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file: Field required"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "go together"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}", "go together"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}", "Input should be"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "Input should be 'TLS12' or 'TLS13'"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}", "min_version"),
        ("basic_auth_users: {ann: correct horse}", "basic_auth_users.ann: not a bcrypt hash"),
        (f"basic_auth_users: {{ann: {HASH.replace('$04$', '$31$')}}}", "the cost of the bcrypt hash"),
        ("- a list", "Input should be"),
        ("basic_auth_users: {ann: 'correct horse", "is not YAML: line 1"),
        ("basic_auth_users: {ann: 2026-02-31}", "is not YAML"),
        ("[" * 5000, "is not YAML: line 1"),
        ("#" * (2**20 + 1), "larger than 1048576 bytes"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_is_refused_in_a_line_that_repeats_no_secret(tmp_path: Path, text: str, told: str) -> None:
    """Unknown keys of the shared format are refused too: who sets them counts on them."""
    with pytest.raises(BadWebConfigError) as refused:
        read_web_config(written(tmp_path, text))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert HASH[-31:] not in str(refused.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """As in exporter-toolkit, so that one mounted directory is enough."""
    config = read_web_config(written(tmp_path, "tls_server_config: {cert_file: tls.crt, key_file: /keys/tls.key}"))
    assert config.tls_server_config is not None
    assert config.tls_server_config.cert_file == tmp_path / "tls.crt"
    assert config.tls_server_config.key_file == Path("/keys/tls.key")


def weak(authority: Authority, folder: Path) -> Pair:
    """A pair with an RSA key of 1024 bits, which anybody with some money can factor."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    weak_key = folder / "weak.key"
    weak_key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    certificate = authority.certify("weak", key, folder / "weak.pem")
    return Pair(certificate, weak_key)


def test_weak_unreadable_and_foreign_keys_are_clear_errors(authority: Authority, tmp_path: Path) -> None:
    """Each names the file and what is wrong."""
    good, other = authority.issue("good"), authority.issue("other")
    missing = Pair(good.certificate, tmp_path / "none.key")
    for pair, told in [
        (weak(authority, tmp_path), "the key is too weak: RSA needs 2048 bits or more"),
        (missing, f"cannot use {missing.key}: No such file or directory"),
        (Pair(good.certificate, other.key), "the key does not belong to the certificate"),
        (Pair(good.certificate, good.certificate), "not PEM"),
        (authority.issue("locked", password=b"of the night"), "cannot use"),
    ]:
        with pytest.raises(BadWebConfigError, match="cannot use") as refused:
            Web(written(tmp_path, tls_text(pair))).load()
        assert told in str(refused.value)


def test_a_file_that_turns_invalid_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    """And one that never was valid lets nobody in."""
    path = written(tmp_path, f"basic_auth_users: {{ann: {HASH}}}")
    web = Web(path)
    assert web.refused is not None
    web.load()
    assert (web.users, web.refused) == ({"ann": HASH}, None)
    assert not web.changed()
    path.write_text("basic_auth_users: {ann: plain}")
    assert web.changed()
    with pytest.raises(BadWebConfigError):
        web.load()
    assert (web.users, web.refused) == ({"ann": HASH}, None)
    assert not web.changed()
    never = Web(path)
    with pytest.raises(BadWebConfigError):
        never.load()
    assert "not a bcrypt hash" in str(never.refused)


def test_another_file_is_in_force_when_it_has_been_read(tmp_path: Path) -> None:
    """Settings that become valid late name users of whom nobody knew: nobody is let in before they are known."""
    path, broken = written(tmp_path, f"basic_auth_users: {{ann: {HASH}}}"), tmp_path / "broken.yaml"
    broken.write_text("{")
    web = Web(None)
    web.load()
    assert (web.refused, web.changed()) == (None, False)
    web.use(path)
    assert web.refused is not None
    assert web.changed()
    web.load()
    assert (web.users, web.refused, web.changed()) == ({"ann": HASH}, None, False)
    web.use(broken)
    with pytest.raises(BadWebConfigError):
        web.load()
    assert (web.users, web.refused) == ({"ann": HASH}, None)
    web.use(None)
    web.load()
    assert (web.users, web.refused, web.changed()) == ({}, None, False)


def test_a_file_that_may_now_be_read_has_changed(tmp_path: Path) -> None:
    """A key mounted with the wrong mode is mended without a byte of it, or its time of writing, being another."""
    path = written(tmp_path, "basic_auth_users: {}")
    path.chmod(0)
    before = file_version(path)

    def allowed() -> bool:
        path.chmod(0o600)
        return file_version(path) != before

    eventually(allowed)  # within a tick of the file system's clock it cannot be told


async def test_tls_client_certificates_and_rotation(authority: Authority, tmp_path: Path) -> None:
    """Plain HTTP and strangers are not served; a new certificate is, without a connection refused in between."""
    server, client = authority.issue("127.0.0.1"), authority.issue("prometheus")
    own = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    own.certificate.write_bytes(server.certificate.read_bytes())
    own.key.write_bytes(server.key.read_bytes())
    more = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.ca}\n"
    path = written(tmp_path, tls_text(own, more))
    known = client_context(Scrape(ca_file=authority.ca, cert_file=client.certificate, key_file=client.key))
    stranger = client_context(Scrape(ca_file=authority.ca))
    async with site(path) as (one, web, port):
        url = f"https://127.0.0.1:{port}/-/healthy"
        async with httpx.AsyncClient(verify=known) as reader:
            assert (await reader.get(url)).text == "healthy\n"
        with pytest.raises(httpx.HTTPError):
            async with httpx.AsyncClient(verify=stranger) as reader:
                await reader.get(url)
        with pytest.raises(httpx.HTTPError):
            async with httpx.AsyncClient() as reader:
                await reader.get(url.replace("https", "http"))
        renewed = authority.issue("127.0.0.1")
        own.certificate.write_bytes(renewed.certificate.read_bytes())
        own.key.write_bytes(renewed.key.read_bytes())
        assert web.changed()
        web.load()
        one.renew()
        async with httpx.AsyncClient(verify=known) as reader:
            for _ in range(5):
                response = await reader.get(url, headers={"Connection": "close"})
                assert response.text == "healthy\n"
            shown = response.extensions["network_stream"].get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert ssl.DER_cert_to_PEM_cert(shown) == renewed.certificate.read_text()


async def test_handshakes_that_are_never_finished_are_counted_and_cheap(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 connections on which nothing is said 30 are held, at less than 64 KiB of Python's memory each."""
    monkeypatch.setattr(connection, "MAX_CONNECTIONS_OF_ONE", 30)
    async with site(written(tmp_path, tls_text(authority.issue("127.0.0.1")))) as (_, _, port):
        loop = asyncio.get_running_loop()
        clients = [socket.socket() for _ in range(40)]
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for client in clients:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
        ends = [asyncio.create_task(loop.sock_recv(client, 1)) for client in clients]
        async with asyncio.timeout(30):
            while sum(end.done() for end in ends) < 10:
                await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        held = [end for end in ends if not end.done()]
        for end in held:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        for client in clients:
            client.close()
    assert len(held) == 30
    assert after - before < 30 * 64 * 1024


async def test_basic_auth_and_rotated_users(tmp_path: Path) -> None:
    """401 without, with a wrong and with an unknown user; 200 with the right one; probes need none."""
    path = written(tmp_path, f"basic_auth_users: {{ann: {HASH}}}")
    async with site(path) as (one, web, port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as reader:
            assert (await reader.get("/metrics")).status_code == 401
            assert (await reader.get("/api/v1/signals")).headers["www-authenticate"] == 'Basic realm="vllm-sidecar"'
            assert (await reader.get("/metrics", auth=("ann", "wrong"))).status_code == 401
            assert (await reader.get("/metrics", auth=("bob", SECRET))).status_code == 401
            assert (await reader.get("/metrics", headers={"Authorization": "Basic !"})).status_code == 401
            for _ in range(3):
                assert (await reader.get("/metrics", auth=("ann", SECRET))).status_code == 200
            assert (await reader.get("/-/healthy")).status_code == 200
        path.write_text(f"basic_auth_users: {{bob: {HASH}}}")
        web.load()
        one.renew()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as reader:
            assert (await reader.get("/metrics", auth=("ann", SECRET))).status_code == 401
            assert (await reader.get("/metrics", auth=("bob", SECRET))).status_code == 200


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("web_config_file: {web}", "not a bcrypt hash"),
        ("web_config_file: {folder}/none.yaml", "web_config_file: cannot read"),
        ("scrape: {{cert_file: {weak}.pem, key_file: {weak}.key}}", "the key is too weak: RSA needs 2048 bits or more"),
        ("scrape: {{ca_file: {web}}}", "no certificate in it"),
        ("discovery: {{file_sd: ['{targets}']}}", "the same engine again"),
        ("discovery: {{file_sd: ['{web}']}}", "not a list of groups"),
    ],
)
def test_what_cannot_be_served_with_ends_the_start(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, told: str
) -> None:
    """One line on standard error and exit code 2: weak keys, files that are none, an engine twice."""
    web = written(tmp_path, "basic_auth_users: {ann: plain}")
    weak(authority, tmp_path)
    targets = tmp_path / "targets.yaml"
    targets.write_text("- targets: ['10.0.0.1:8000', '10.0.0.1:8000']")
    config = tmp_path / "settings.yaml"
    config.write_text(settings.format(web=web, folder=tmp_path, weak=tmp_path / "weak", targets=targets))
    assert main(["--config.check", "--config.file", str(config)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
