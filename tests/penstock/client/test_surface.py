"""The client's surface: complete, free of protobuf, light to import, and able to speak TLS."""

import shutil
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message as ProtoMessage

import penstock as api
from penstock import Client, InternalError, Tls, UnavailableError
from penstock.values.errors import from_rpc_error
from tests.penstock.client.fake_router import FakeRouter, serving

ROOT = Path(__file__).parents[3]
BLOCKED = ("ray", "torch", "vllm", "redis", "transformers", "tokenizers", "jinja2", "pydantic", "numpy")


def test_every_exported_name_exists():
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    assert len(set(api.__all__)) == len(api.__all__)


def test_no_protobuf_message_is_part_of_the_surface():
    exported = [getattr(api, name) for name in api.__all__]

    assert not [item for item in exported if isinstance(item, type) and issubclass(item, ProtoMessage)]


def test_values_are_frozen():
    values = [item for name in api.__all__ if is_dataclass(item := getattr(api, name))]

    assert values
    assert [value for value in values if not value.__dataclass_params__.frozen] == []


@pytest.mark.slow
def test_the_client_imports_with_the_base_install_only():
    """A client machine has no engine, no queue and no tokenizer."""
    program = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is not part of the base install")
sys.meta_path.insert(0, Block())
from penstock import AsyncClient, Client
Client("127.0.0.1:1").close()
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode, run.stderr) == (0, "")


def test_a_private_key_does_not_show():
    assert "secret" not in repr(Tls(certificate_chain=b"shown", private_key=b"secret"))


def test_details_that_cannot_be_read_leave_the_code():
    """A proxy between client and router may write trailers of its own."""

    class Broken(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return ""

        def trailing_metadata(self):
            return (("x", "y"), ("grpc-status-details-bin", b"\xff\xff"))

    error = from_rpc_error(Broken())

    assert type(error) is UnavailableError
    assert (str(error), error.reason, error.retry_after) == ("UNAVAILABLE", "", None)


def test_constraints_have_helpers():
    assert api.json_schema({"type": "object"}) == api.json_schema('{"type": "object"}')
    assert api.one_of("a", "b").choices == ("a", "b")
    assert (api.regex("a+").text, api.grammar("g").text) == ("a+", "g")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[bytes, bytes]:
    """Make a certificate for the name router.test; returns (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=router.test "
        "-addext subjectAltName=DNS:router.test -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return (folder / "cert.pem").read_bytes(), (folder / "key.pem").read_bytes()


async def test_tls_reaches_a_router_with_the_right_name_only(certificate):
    import asyncio

    chain, key = certificate
    credentials = grpc.ssl_server_credentials([(key, chain)])
    once = api.RetryPolicy(max_attempts=1)

    def call(tls: Tls | None, port: int) -> int:
        with Client(f"127.0.0.1:{port}", tls=tls, retry=once) as client:
            return client.count_tokens("demo", "one two").tokens

    async with serving(FakeRouter(), credentials=credentials) as port:
        assert await asyncio.to_thread(call, Tls(chain, server_name="router.test"), port) == 2
        for wrong in (Tls(chain), Tls(server_name="router.test"), None):
            with pytest.raises((UnavailableError, InternalError)):
                await asyncio.to_thread(call, wrong, port)
