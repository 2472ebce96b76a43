"""Measured points of one's own engine: read from the files of tools, fitted, and told of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from cluster.control.step_model import Shape
from cluster.errors import SettingsError
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.points import COLUMNS
from loadtest.plan.engine.steady import steady
from loadtest.plan.measured.correction import Correction
from loadtest.plan.measured.files import OwnEngine, OwnPoint, read_own
from loadtest.plan.measured.own import SEVERAL, Corrections, corrected, engine_said, next_clients, points_for, what_next
from loadtest.plan.option import Engine, Layout
from loadtest.plan.search import engines

OWN = OwnEngine("qwen3-30b-a3b", "h100", 2, "bf16", "0.19.0")


def prior() -> Engine:
    (found,), _ = engines(
        load_shape(OWN.model), [load_gpu("h100")], ["bf16"], prices={}, parallel=[2], layouts=[Layout()]
    )
    return found


def seen(engine: Engine, clients: int, shape: Shape) -> OwnPoint:
    """A point as an engine gives it."""
    tokens, sequences = engine.step_limits
    found = steady(
        engine.steps, clients, shape, kv_tokens=engine.kv_tokens, step_tokens=tokens, max_sequences=sequences
    )
    return OwnPoint(shape, clients, found.itl_s, found.ttft_s, "made", OWN)


def slower() -> Engine:
    """An engine that is unlike the prior in every part."""
    return replace(prior(), steps=Correction(1.6, 1.2, 1.3, 1.1, 2.0, 1.2).of(prior().steps))


def test_three_points_shift_the_prior_also_for_other_lengths() -> None:
    """And they narrow what is not known."""
    points = [seen(slower(), clients, Shape(1024, 1024)) for clients in (4, 32, 128)]
    better, moved = corrected(prior(), points)
    assert moved is not None
    assert moved.tpot[0] > 0.2
    assert moved.tpot[1] < 0.05
    assert better.error < prior().error
    assert "corrected by 3 measured points" in better.source
    for shape in (Shape(4096, 512), Shape(512, 2048)):
        truth = seen(slower(), 64, shape)
        before, after = (seen(each, 64, shape).tpot_s / truth.tpot_s - 1 for each in (prior(), better))
        assert abs(after) < 0.5 * abs(before)


def test_points_that_agree_with_the_prior_change_nothing() -> None:
    points = [seen(prior(), clients, Shape(1024, 1024)) for clients in (4, 32, 128)]
    better, _ = corrected(prior(), points)
    here, there = (seen(each, 16, Shape(1000, 1000)).tpot_s for each in (prior(), better))
    assert here == pytest.approx(there, rel=1e-3)


def test_points_of_another_engine_are_left_alone() -> None:
    point = seen(slower(), 8, Shape(1024, 1024))
    for other in (replace(OWN, tensor_parallel=4), replace(OWN, gpu="h200"), replace(OWN, precision="fp8")):
        assert corrected(prior(), [replace(point, engine=other)]) == (prior(), None)


VLLM = {
    "model_id": "Qwen/Qwen3-30B-A3B", "completed": 320, "duration": 60.0, "total_input_tokens": 320 * 1000,
    "total_output_tokens": 320 * 200, "max_concurrency": 32, "mean_ttft_ms": 150.0, "mean_tpot_ms": 12.0,
}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "prompt_token_count": {"successful": {"mean": 1000.0}},
                "output_token_count": {"successful": {"mean": 200.0}},
                "time_to_first_token_ms": {"successful": {"mean": 150.0}},
                "inter_token_latency_ms": {"successful": {"mean": 12.0}},
                "request_concurrency": {"successful": {"mean": 31.6}},
            }
        }
    ]
}
AIPERF = {
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "time_to_first_token": {"unit": "ms", "avg": 150.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0},
    "input_config": {"loadgen": {"concurrency": 32}, "endpoint": {"model_names": ["Qwen/Qwen3-30B-A3B"]}},
}
# 12.6 requests per second of 2.538 s each are 32 under way.
INFERENCE_PERF = {
    "load_summary": {"achieved_rate": 12.6},
    "successes": {
        "prompt_len": {"mean": 1000.0},
        "output_len": {"mean": 200.0},
        "latency": {"time_to_first_token": {"mean": 0.15}, "time_per_output_token": {"mean": 0.012}},
    },
}
PENSTOCK = {
    "completed": 756, "seconds": 60.0, "prompt_tokens": 756_000, "output_tokens": 151_200,
    "ttft_s": {"mean": 0.15}, "tpot_s": {"mean": 0.012},
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "tool"),
    [
        (VLLM, "vLLM bench"),
        (GUIDELLM, "guidellm"),
        (AIPERF, "AIPerf"),
        ({"records": AIPERF, "input_config": AIPERF["input_config"]}, "AIPerf"),
        (INFERENCE_PERF, "inference-perf"),
        (PENSTOCK, "Penstock"),
        ({"summary": PENSTOCK}, "Penstock"),
    ],
)
def test_results_of_tools_are_points(tmp_path: Path, data: dict[str, Any], tool: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(data))
    (point,) = read_own(file)
    assert Shape(1000, 200) == point.shape
    assert (32, f"{tool} result.json") == (point.clients, point.source)
    assert (0.012, 0.15) == (pytest.approx(point.tpot_s), pytest.approx(point.ttft_s))


def test_a_csv_names_its_engines_and_their_version(tmp_path: Path) -> None:
    row = dict(zip(COLUMNS, ("Qwen/Qwen3-32B", "h100_sxm", "fp8", "1024", "512", "4", "2", "80", "11"), strict=True))
    row["backend_version"] = "0.19.0"
    (tmp_path / "p.csv").write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    (point,) = read_own(tmp_path / "p.csv")
    assert OwnEngine("Qwen/Qwen3-32B", "h100_sxm", 2, "fp8", "0.19.0", 1, 1) == point.engine


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"hello": 1}, "is of no known tool; known are vLLM bench, guidellm"),
        ({**VLLM, "completed": 0}, "completed must be a number above 0, got 0"),
        ({**VLLM, "mean_tpot_ms": None, "mean_ttft_ms": None}, "neither a time per token nor one to the first token"),
        ({**AIPERF, "inter_token_latency": {"unit": "days", "avg": 1}}, "inter_token_latency.unit must be one of"),
        ([1], "must hold one JSON object"),
        ({"benchmarks": []}, "has no measured point"),
    ],
)
def test_a_file_that_is_no_result_says_what_is_wrong(tmp_path: Path, data: object, said: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(SettingsError, match=said):
        read_own(tmp_path / "x.json")


@pytest.mark.parametrize(
    "data",
    [
        {**AIPERF, "input_config": {"phases": 7}},
        {**AIPERF, "output_sequence_length": {"avg": 10**400}},
        {"summary": True, "completed": 3},
        {"records": 1.5, "input_sequence_length": 3},
    ],
)
def test_values_of_other_kinds_in_a_result_are_refused_without_a_traceback(
    tmp_path: Path, data: dict[str, Any]
) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(data))
    with pytest.raises(SettingsError, match=r"result\.json"):
        read_own(file)


def test_a_csv_whose_points_were_all_not_measured_is_refused(tmp_path: Path) -> None:
    """The plan would say nothing of the file, and be as without it."""
    path = tmp_path / "p.csv"
    path.write_text(",".join(COLUMNS) + "\nQwen/Qwen3-32B,h100_sxm,fp8,1024,512,4,2,nan,nan\n")
    with pytest.raises(SettingsError, match="has no measured point"):
        read_own(path)


def test_what_a_file_does_not_tell_must_be_said() -> None:
    point = replace(seen(prior(), 4, Shape(100, 100)), engine=OwnEngine())
    with pytest.raises(SettingsError, match="does not tell its accelerator"):
        points_for([point], OwnEngine())
    (known,) = points_for([point], engine_said("NVIDIA H100 80GB HBM3, 2, bf16, 0.19.1"))
    assert OwnEngine("", "h100", 2, "bf16", "0.19.1", 1, 1) == known.engine
    with pytest.raises(SettingsError, match="is of gpu h100, and h200 was asked for"):
        points_for([known], engine_said("h200,2,bf16"))


@pytest.mark.parametrize("text", ["h100", "h100,x,fp8", "h100,0,fp8", "h100,4,fp8,1,2"])
def test_an_engine_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="points-of must be GPU,TP,PRECISION"):
        engine_said(text)


def test_points_of_engines_that_are_not_planned_for_are_refused() -> None:
    stray = replace(seen(prior(), 4, Shape(100, 100)), engine=replace(OWN, gpu="h200"))
    with pytest.raises(SettingsError, match=r"is of 2 x h200, bf16.*planned for: 2 x h100, bf16"):
        Corrections([stray]).check([prior()])


def test_points_with_another_kv_cache_are_refused(tmp_path: Path) -> None:
    """An 8-bit cache reads half of the bytes per token; its points made a 16-bit one look as fast."""
    file = tmp_path / "p.csv"
    rows = [("kv_cache_dtype", *COLUMNS), ("fp8", "Qwen/Qwen3-30B-A3B", "h100", "bf16", 1024, 256, 8, 2, 80, 9)]
    file.write_text("\n".join(",".join(map(str, row)) for row in rows))
    points = points_for(read_own(file), OwnEngine())
    assert (prior(), None) == corrected(prior(), points)
    assert corrected(replace(prior(), kv_element_bytes=1.0), points)[1] is not None
    said = "2 x h100, bf16, of .*, with a KV cache in fp8; engines .*: 2 x h100, bf16, .*, with a KV cache in bf16"
    with pytest.raises(SettingsError, match=said):
        Corrections(points).check([prior()])
    file.write_text(file.read_text().replace("\nfp8,", "\n,"))
    assert corrected(prior(), points_for(read_own(file), OwnEngine()))[1] is not None


def test_points_of_a_models_hub_id_are_of_a_folder_with_its_files() -> None:
    """A plan for /models/Qwen3-30B-A3B has the folder's name, the results of vLLM bench the hub id."""
    here = replace(prior(), model="Qwen3-30B-A3B")
    point = replace(seen(prior(), 4, Shape(100, 100)), engine=replace(OWN, model="Qwen/Qwen3-30B-A3B"))
    Corrections([point]).check([here])
    assert corrected(here, [point])[1] is not None
    other = replace(point, engine=replace(OWN, model="Qwen/Qwen3-32B"))
    with pytest.raises(SettingsError, match="of Qwen/Qwen3-32B; engines that are planned for"):
        Corrections([other]).check([here])


def test_points_of_an_unknown_model_count_for_a_model_of_that_name_only() -> None:
    """They counted for every model."""
    point = replace(seen(slower(), 8, Shape(1024, 1024)), engine=replace(OWN, model="/models/Our-Finetune"))
    assert corrected(prior(), [point]) == (prior(), None)
    with pytest.raises(SettingsError, match="is of 2 x h100, bf16, of /models/Our-Finetune"):
        Corrections([point]).check([prior()])
    assert corrected(replace(prior(), model="our-finetune"), [point])[1] is not None


def test_what_is_measured_next_is_far_from_what_is_known() -> None:
    fresh = next_clients(200, [])
    assert (4, 200) == (fresh[0], fresh[-1])
    assert 16 <= fresh[1] <= 64
    assert not set(next_clients(200, fresh)) & set(fresh)
    assert [1] == next_clients(1, [])
    text = what_next(prior(), Shape(1000, 250), 200, [])
    assert "--random-input-len 1000 --random-output-len 250" in text
    assert "2 x h100, bf16" in text


@pytest.mark.slow
def test_a_plan_with_points_tells_how_its_error_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for clients in (4, 32, 128):
        point = seen(slower(), clients, Shape(1024, 1024))
        done = 10 * clients
        data = {
            **VLLM,
            "completed": done,
            "total_input_tokens": done * 1024,
            "total_output_tokens": done * 1024,
            "max_concurrency": clients,
            "mean_ttft_ms": 1e3 * point.ttft_s,
            "mean_tpot_ms": 1e3 * point.tpot_s,
        }
        file = tmp_path / f"c{clients}.json"
        file.write_text(json.dumps(data))
        files += ["--points", str(file)]
    words = ["--model", OWN.model, "--gpu", "h100", "--tp", "2", "--rate", "2", "--draws", "1", "--simulate", "1"]
    assert 0 == main(["plan", *words, *files, "--state-dir", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    (text,) = found["measured"]
    assert "2 x h100, bf16: mean error on 3 points: TPOT" in text
    assert "vLLM bench c4.json" in text
    assert "version not told" in text
    assert "corrected by 3 measured points" in found["candidates"][0]["source"]
    assert math.isfinite(found["candidates"][0]["error"])
    assert "--max-concurrency" in found["measure_next"]


# --- engines that are split further -----------------------------------------------------------------------------------

SPLITS = {
    "groups": ("deepseek-v3", "h200", 1, "fp8", Layout(data=8)),
    "stages": ("llama-3.1-70b", "h100", 4, "bf16", Layout(pipeline=2)),
}


def split_engine(split: str) -> Engine:
    model, gpu, ranks, precision, layout = SPLITS[split]
    (found,), _ = engines(
        load_shape(model), [load_gpu(gpu)], [precision], prices={}, parallel=[ranks], layouts=[layout]
    )
    return found


def points_of(engine: Engine, each: tuple[int, ...] = (4, 16, 64)) -> list[OwnPoint]:
    """Points of a whole replica that has so many clients in each batch."""
    layout = engine.layout
    own = OwnEngine(
        engine.model, engine.gpu, engine.tensor_parallel, engine.precision, "", layout.pipeline, layout.data
    )
    seen_each = [seen(engine, clients, Shape(1024, 256)) for clients in each]
    return [replace(point, clients=engine.lanes * point.clients, engine=own) for point in seen_each]


@pytest.mark.parametrize("split", SPLITS)
def test_points_of_a_split_replica_correct_the_batch_of_each_part(split: str) -> None:
    engine = split_engine(split)
    truth = replace(engine, steps=Correction(1.6, 1.2, 1.3, 1.1, 2.0, 1.2).of(engine.steps))
    better, moved = corrected(engine, points_of(truth))
    assert moved is not None
    assert moved.tpot[0] > 0.15
    assert moved.tpot[1] < 0.05
    assert better.error < engine.error


@pytest.mark.parametrize("split", SPLITS)
def test_points_correct_no_engine_that_is_split_otherwise(split: str) -> None:
    engine = split_engine(split)
    points = points_of(engine)
    other = replace(engine, layout=Layout())
    assert (other, None) == corrected(other, points)
    with pytest.raises(SettingsError, match=rf"is of {engine.tensor_parallel * engine.lanes} \((PP 2|DP 8, EP)\) x"):
        Corrections(points).check([other])


def test_data_parallel_ranks_of_a_dense_model_are_engines_beside_each_other() -> None:
    model = "llama-3.1-8b"
    (engine,), _ = engines(load_shape(model), [load_gpu("h100")], ["bf16"], prices={}, parallel=[1], layouts=[Layout()])
    point = replace(seen(engine, 16, Shape(512, 128)), clients=32)
    point = replace(point, engine=OwnEngine(model, "h100", 1, "bf16", data_parallel=2))
    _, moved = corrected(engine, [point])
    assert moved is not None
    assert pytest.approx(0.0, abs=1e-6) == moved.tpot[0]


def test_a_files_split_is_read(tmp_path: Path) -> None:
    made = {
        "completed": 100, "total_input_tokens": 102400, "total_output_tokens": 25600, "duration": 60.0,
        "max_concurrency": 32, "mean_tpot_ms": 20.0, "mean_ttft_ms": 100.0, "model_id": "deepseek-v3",
        "tensor_parallel_size": "1", "data_parallel_size": "8",
    }  # fmt: skip
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(made), encoding="utf-8")
    [point] = read_own(file)
    assert (1, 0, 8) == (point.engine.tensor_parallel, point.engine.pipeline_parallel, point.engine.data_parallel)

    row = dict.fromkeys(COLUMNS, "1") | {
        "model_path": "deepseek-v3", "system": "h200", "precision": "fp8", "batch_size": "4", "isl": "1024",
        "osl": "256", "silicon_ttft_ms": "100", "silicon_tpot_ms": "20",
    }  # fmt: skip
    rows = [row | {"attention_dp_size": "8", "pp_size": "1"}, row | {"attention_dp_size": "1", "pp_size": "2"}]
    table = tmp_path / "points.csv"
    lines = [",".join(rows[0]), *(",".join(each.values()) for each in rows)]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = [(each.clients, each.engine.pipeline_parallel, each.engine.data_parallel) for each in read_own(table)]
    assert [(32, 1, 8), (4, 2, 1)] == found


def test_a_split_that_nobody_says_is_asked_for() -> None:
    point = replace(seen(prior(), 4, Shape(100, 100)), engine=OWN)
    [plain] = points_for([point], OwnEngine())
    assert (1, 1) == (plain.engine.pipeline_parallel, plain.engine.data_parallel)
    [said] = points_for([point], OwnEngine(pipeline_parallel=1, data_parallel=8))
    assert 8 == said.engine.data_parallel
    with pytest.raises(SettingsError, match="does not tell its pipeline and data parallel sizes"):
        points_for([point], OwnEngine(pipeline_parallel=SEVERAL, data_parallel=SEVERAL))
    told = replace(point, engine=replace(OWN, data_parallel=4))
    with pytest.raises(SettingsError, match="is of data_parallel 4, and 8 was asked for"):
        points_for([told], OwnEngine(data_parallel=8))


def test_what_to_measure_next_of_a_split_replica_has_clients_for_all_its_parts() -> None:
    said = what_next(split_engine("groups"), Shape(1024, 256), 64, [])
    assert "with 32, 128 and 512 clients next" in said
    assert said.endswith("--metadata tensor_parallel_size=1 pipeline_parallel_size=1 data_parallel_size=8")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((1e-3, 1e-3), r"the time per token with 16 clients is .*e-05 s, and 0\.0\d* s are expected of 2 x h100, bf16"),
        ((1e3, 1.0), "the time per token with 16 clients is"),
        ((1.0, 1e-3), "the time to the first token with 16 clients is"),
        ((math.nan, 1e3), "from 100 times as long or as short on it is in another unit, or of another engine"),
    ],
)
def test_times_in_another_unit_are_refused(times: tuple[float, float], said: str) -> None:
    """A fit followed them: a plan said that steps count as 6e84 times as long as predicted."""
    point = seen(prior(), 16, Shape(1024, 512))
    with pytest.raises(SettingsError, match=said):
        corrected(prior(), [replace(point, tpot_s=times[0] * point.tpot_s, ttft_s=times[1] * point.ttft_s)])


def csv_of(path: Path, *rows: tuple[object, ...], columns: tuple[str, ...] = COLUMNS) -> Path:
    path.write_text("\n".join(",".join(map(str, row)) for row in (columns, *rows)) + "\n")
    return path


ROW = ("Qwen/Qwen3-30B-A3B", "h100", "bf16", 1024, 256, 8, 2, 80, 9)


@pytest.mark.parametrize(
    ("row", "tpot_s", "ttft_s"), [((*ROW[:7], "", 9), 0.009, math.nan), ((*ROW[:7], 80, "nan"), math.nan, 0.08)]
)
def test_a_row_with_one_of_the_times_is_a_point(
    tmp_path: Path, row: tuple[object, ...], tpot_s: float, ttft_s: float
) -> None:
    """It was left out in silence, where the same in JSON is a point."""
    (point,) = points_for(read_own(csv_of(tmp_path / "p.csv", row)), OwnEngine())
    assert (pytest.approx(tpot_s, nan_ok=True), pytest.approx(ttft_s, nan_ok=True)) == (point.tpot_s, point.ttft_s)
    better, moved = corrected(prior(), [point])
    assert moved is not None
    assert "corrected by 1 measured point" in better.source


def test_precisions_of_a_csv_are_read_as_the_check_of_the_prior_reads_them(tmp_path: Path) -> None:
    """A plan refused fp8_block without a word of the file."""
    file = csv_of(tmp_path / "p.csv", (*ROW[:2], "fp8_block", *ROW[3:]))
    (point,) = read_own(file)
    assert "fp8" == point.engine.precision
    with pytest.raises(SettingsError, match=r"p\.csv: precision must be one of .*, got 'fp7'"):
        read_own(csv_of(file, (*ROW[:2], "fp7", *ROW[3:])))


def test_a_row_of_commas_alone_is_none(tmp_path: Path) -> None:
    """Spreadsheets write them."""
    assert 1 == len(read_own(csv_of(tmp_path / "p.csv", ROW, ("",) * len(ROW))))
