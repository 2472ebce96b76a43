"""The prior, and fits, on points that an engine of known constants would have given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.control.step_model import Experts, Shape, StepModel
from cluster.errors import TraceError
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.points import (
    COLUMNS,
    MOST_SEQUENCES,
    Config,
    Point,
    errors_of,
    known,
    predict,
    read_points,
    score,
)
from loadtest.plan.engine.prior import Coefficients, StepPrior, prior
from loadtest.plan.engine.steady import itl_of, steady
from loadtest.plan.engine.steps import Roofline
from loadtest.plan.measured.held_out import hold_out_models, leave_one_shape_out, verdicts
from loadtest.plan.measured.recipes import as_run
from loadtest.plan.option import Layout
from loadtest.plan.search import engines

H100 = Config("meta-llama/Llama-3.1-70B", "h100_sxm", "fp8", 4)
MOE = Config("openai/gpt-oss-120b", "h100_sxm", "fp4", 4)
SHAPES = [Shape(1024, 1024), Shape(1024, 8192), Shape(8192, 1024)]


def made(config: Config, coefficients: Coefficients, clients: tuple[int, ...] = (4, 16, 64)) -> list[Point]:
    """Points as an engine with other constants than the prior's would give them."""
    points = []
    for shape in SHAPES:
        for count in clients:
            blank = Point(config, shape, count, 1.0, 1.0)
            found = known(config)
            assert not isinstance(found, str)
            got = predict(blank, found, coefficients)
            assert got is not None
            points.append(Point(config, shape, count, got.ttft_s, got.itl_s))
    return points


def test_the_decode_floor_of_the_prior_is_the_weights_read() -> None:
    """70B in fp8 on four H100: 5.2 ms to read the weights at the data sheet's bandwidth, and 80 layers."""
    c, engine = Coefficients(), prior(load_shape("llama-3.1-70b"), load_gpu("h100"), 4, "fp8")
    floor = c.weight_read * 69.5e9 / (4 * 3.35e12) + 80 * (c.layer_s + c.split_layer_s)
    assert floor == pytest.approx(engine.step(0, 1, 0), rel=0.01)


def test_a_measured_point_of_another_house_is_near() -> None:
    """Llama-70B fp8, TP4, H100, 1,024 in and out at 16 clients: 13.2 ms per token and 121 ms to the first."""
    found = known(H100)
    assert not isinstance(found, str)
    got = predict(Point(H100, Shape(1024, 1024), 16, 0.1214, 0.01319), found)
    assert got is not None
    assert 0.01319 == pytest.approx(got.itl_s, rel=0.05)
    assert 0.1214 == pytest.approx(got.ttft_s, rel=0.25)


def test_too_many_clients_for_the_kv_cache_wait() -> None:
    engine = StepPrior(StepModel(0.01, 1e-5, 1e-8), 0.0)
    shape = Shape(1000, 1000)
    few = steady(engine, 10, shape, kv_tokens=15_000, step_tokens=8192, max_sequences=256)
    many = steady(engine, 20, shape, kv_tokens=15_000, step_tokens=8192, max_sequences=256)
    assert 0.0 == few.queue_s
    assert 10 == many.batch == few.batch
    assert 10.0 < many.queue_s == pytest.approx(1000 * many.itl_s + few.ttft_s, rel=0.01)


def test_prompts_read_experts_only_in_their_own_steps() -> None:
    """With one long prompt in a thousand steps, the batch reads few experts in nearly all of them."""
    engine = StepPrior(StepModel(0.0, 0.0, 0.0, 0.01, Experts(100, 1)), 0.0)
    one = itl_of(engine, 1, Shape(8000, 1000), 8192)
    assert 0.01 * (0.999 * 0.01 + 0.001) == pytest.approx(one, rel=0.01)


def test_reads_hide_arithmetic_and_the_other_way_round() -> None:
    """Neither a small step nor a large one takes the sum of both."""
    roofline = Roofline(0.01, 1e-4, sharpness=8.0)
    assert 0.01 == pytest.approx(roofline.seconds(10), rel=0.01)
    assert 0.1 == pytest.approx(roofline.seconds(1000), rel=0.01)
    assert 0.01 < roofline.seconds(100) < 0.012


def test_attention_of_prompts_grows_with_the_square_of_their_length() -> None:
    """A 32k prompt of 70B in fp8 on four H100: attention in 16 bits is two thirds of the linear part in 8."""
    engine = prior(load_shape("llama-3.1-70b"), load_gpu("h100"), 4, "fp8")
    assert engine.roofline is not None
    square = engine.attention_s * 32_768**2 / 2
    assert 4 * 64 * 128 * 80 * 32_768**2 / 2 / (4 * 989e12) * Coefficients().attention == pytest.approx(square)
    assert 0.4 < square / (engine.roofline.dense_token_s * 32_768) < 0.8


@pytest.mark.parametrize(
    ("quicker", "slower"),
    [
        (("gpt-oss-120b", "h200", 2, "fp4"), ("gpt-oss-120b", "h200", 2, "bf16")),
        (("qwen3-30b-a3b", "h200", 1, "bf16"), ("qwen3-30b-a3b", "rtxpro6000", 1, "bf16")),
        (("qwen3-32b", "a100", 2, "bf16"), ("qwen3-32b", "rtxpro6000", 2, "bf16")),
    ],
)
def test_what_has_more_to_move_or_less_to_move_it_with_is_slower(
    quicker: tuple[str, str, int, str], slower: tuple[str, str, int, str]
) -> None:
    fast, slow = (
        prior(load_shape(model), load_gpu(gpu), ranks, precision).step(16, 16, 16_000)
        for model, gpu, ranks, precision in (quicker, slower)
    )
    assert fast < slow


def test_weights_that_are_widened_first_cost_arithmetic() -> None:
    """An A100 has no unit for fp8: prompts take longer than in bf16, though there is less to read."""
    bf16, fp8 = (
        prior(load_shape("qwen3-32b"), load_gpu("a100"), 2, each).prompt_work_s(8000) for each in ("bf16", "fp8")
    )
    assert 1.0 < fp8 / bf16 < 1.25


def test_layers_with_a_window_read_no_more_than_that() -> None:
    """gpt-oss attends to all tokens in half of its layers."""
    engine, whole = (prior(load_shape(name), load_gpu("h100"), 1, "bf16") for name in ("gpt-oss-20b", "qwen3-8b"))
    assert 24 / 2 / 36 * (8 * 64) / (8 * 128) == pytest.approx(engine.steps.g / whole.steps.g, rel=0.01)


def test_a_score_is_zero_where_the_engine_is_as_the_prior_says() -> None:
    result = score(made(H100, Coefficients())).as_json()
    assert 0.0 == pytest.approx(result["median_tpot_error"], abs=1e-9)
    assert 0.0 == pytest.approx(result["median_ttft_error"], abs=1e-9)
    assert [("meta-llama/Llama-3.1-70B", 4, 9, True)] == [
        (each["model"], each["tp"], each["points"], each["in_calibration"]) for each in result["configs"]
    ]


def test_unknown_models_and_splits_are_listed_as_skipped() -> None:
    points = [
        Point(Config("acme/Large-1", "h100_sxm", "fp8", 4), SHAPES[0], 4, 1.0, 0.01),
        Point(Config("Qwen/Qwen3-32B", "tpu_v9", "bf16", 1), SHAPES[0], 4, 1.0, 0.01),
        Point(Config("Qwen/Qwen3-32B", "h100_sxm", "int3", 1), SHAPES[0], 4, 1.0, 0.01),
        Point(Config("Qwen/Qwen3-32B", "h100_sxm", "bf16", 1), SHAPES[0], 4, 1.0, 0.01, "pipeline 2"),
        Point(Config("meta-llama/Llama-3.1-405B", "h100_sxm", "bf16", 8), SHAPES[0], 4, 1.0, 0.01),
    ]
    result = score(points).as_json()
    assert [] == result["configs"]
    assert result["median_tpot_error"] is None
    assert {"unknown model", "unknown system", "unknown precision", "pipeline 2", "does not fit as we size it"} == {
        each["why"] for each in result["skipped"]
    }


def test_a_fit_to_other_lengths_finds_what_the_prior_got_wrong() -> None:
    off = Coefficients(weight_read=1.5, kv_read=1.3, compute=2.0)
    points = made(H100, off)
    tpot = score(points).as_json()["median_tpot_error"]
    (found,) = leave_one_shape_out(points)
    assert tpot > 0.1
    assert found.held_out < 0.05
    assert found.in_sample < 0.03


def test_a_model_is_predicted_from_another_one() -> None:
    off = Coefficients(weight_read=1.5, layer_s=90e-6)
    points = made(H100, off) + made(Config("Qwen/Qwen3-32B", "h100_sxm", "bf16", 2), off)
    per_token, first = hold_out_models(points)
    assert all(each.held_out < 0.08 for each in per_token)
    assert (2, 2) == (len(per_token), len(first))


def test_verdicts_count_what_was_promised_and_not_kept() -> None:
    """Of an engine as the prior has it nothing is promised that it does not keep; of one twice as slow, much is."""
    points = made(H100, Coefficients())
    slower = [Point(p.config, p.shape, p.clients, 2 * p.ttft_s, 2 * p.tpot_s) for p in points]
    tpot_s = sorted(point.tpot_s for point in points)[4] * 1.3
    fair, rash = verdicts(points, 10.0, tpot_s), verdicts(slower, 10.0, tpot_s)
    assert (9, 0) == (fair.points, fair.wrong_yes)
    assert fair.wrong_no < 5
    assert rash.wrong_yes >= 3


def test_a_point_that_contradicts_others_is_counted_apart() -> None:
    crowd = Point(MOE, Shape(1024, 1024), 512, 20.0, 0.005)
    assert (0, 1) == ((found := verdicts([crowd], 2.0, 0.1)).points, found.odd)


def test_a_bound_on_clients_is_not_taken_for_their_number() -> None:
    """An early script of gpt-oss on H100 sent ten rounds at once to an engine with a batch limit of its own."""
    (run,) = as_run([Point(MOE, Shape(1024, 1024), 512, 20.0, 0.0047)])
    crowd = replace(run, batch_limit=MOST_SEQUENCES)
    (other,) = as_run([Point(MOE, Shape(1024, 1024), 64, 0.12, 0.0097)])
    assert (64, MOST_SEQUENCES) == (run.batch_limit, other.batch_limit)
    # Read as 512 in the batch it is said to keep the SLO; with the limit, that most wait.
    assert (1, 0) == (verdicts([crowd], 2.0, 0.1).odd_yes, (found := verdicts([run], 2.0, 0.1)).odd_yes)
    assert 0.0 == found.wrong_part
    known_of = known(MOE)
    assert not isinstance(known_of, str)
    told = predict(run, known_of)
    assert told is not None
    assert told.queue_s > 3 * 922 * told.itl_s


def test_attention_data_parallelism_is_known_less_than_pipelines() -> None:
    found = known(MINIMAX)
    assert not isinstance(found, str)
    grouped, staged, plain = errors_of(found, 1, groups=2), errors_of(found, 1, stages=2), errors_of(found, 1)
    assert plain.ttft < staged.ttft < grouped.ttft
    assert plain.steps < staged.steps < grouped.steps
    point = Point(replace(MINIMAX, groups=2), SHAPES[0], 4, 1.0, 1.0)
    assert [grouped] == [each.errors for each in score([point]).configs]
    shared, _ = engines(load_shape("minimax-m2.5"), [load_gpu("h200")], ["fp8"], prices={}, layouts=[Layout(data=8)])
    assert {(grouped.steps, grouped.ttft)} == {(each.error, each.ttft_error) for each in shared}


def test_a_cache_without_room_for_the_longest_requests_promises_nothing() -> None:
    """64 requests of 4,608 tokens in the mean and 9,216 at their end: 70B has room for the mean on one H200."""
    one = Config("meta-llama/Llama-3.1-70B", "h200_sxm", "fp8", 1, kv_element_bytes=1.0)
    found = known(one)
    assert not isinstance(found, str)
    point = Point(one, Shape(1024, 8192), 64, 5.0, 0.046)
    told = predict(point, found)
    assert told is not None
    assert 0.0 == told.queue_s
    assert 0 == verdicts([point], 2.0, 0.1).wrong_yes


MINIMAX = Config("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "fp8", 2)


def test_points_of_public_runs_get_the_settings_that_their_files_leave_out() -> None:
    """Lengths are drawn from 0.8 to 1 of their name, the cache is of 8 bits, and a group has one accelerator."""
    (run,) = as_run([Point(MINIMAX, Shape(8192, 1024), 8, 0.3, 0.015, version="0.19.0")])
    assert (pytest.approx(7372.8), pytest.approx(921.6)) == (run.shape.prompt_tokens, run.shape.output_tokens)
    assert 1.0 == run.config.kv_element_bytes
    (split,) = as_run([Point(replace(MINIMAX, groups=2), Shape(1024, 1024), 8, 0.3, 0.015, version="0.19.0")])
    assert (1, 2) == (split.config.tensor_parallel, split.config.groups)


def test_points_of_other_lengths_models_and_told_caches_stay_as_they_are() -> None:
    other = [
        Point(MINIMAX, Shape(4096, 512), 8, 0.3, 0.015),
        Point(Config("Qwen/Qwen3-32B", "h100_sxm", "bf16", 2), Shape(1024, 1024), 8, 0.1, 0.01),
    ]
    assert other == as_run(other)
    (told,) = as_run([Point(MINIMAX, Shape(1024, 1024), 8, 0.3, 0.015, cache_told=True)])
    (first,) = as_run([Point(MINIMAX, Shape(1024, 1024), 8, 0.3, 0.015, version="0.17.0")])
    assert 2.0 == told.config.kv_element_bytes == first.config.kv_element_bytes


def test_a_prompt_of_one_group_keeps_the_others_waiting() -> None:
    """Groups share the work of its experts, and wait for what its own group does alone."""
    shape, gpu = load_shape("minimax-m2.5"), load_gpu("h100")
    split = prior(shape, gpu, 1, "fp8", groups=4)
    all_of_them, one = split.step(4, 4004, 4000), split.step(4, 4004, 4000, alone=4000)
    decode = split.step(4, 4, 4000)
    assert decode < one < all_of_them
    assert split.roofline is not None
    dense = split.roofline.dense_s(4004) - split.roofline.dense_s(4)
    assert one - decode > dense
    # A prompt of each group keeps every group waiting, so four times as many steps have one.
    few, many = (itl_of(split, batch, Shape(1000, 1000), 8192) for batch in (1, 16))
    assert few < many


def write(path: Path, **values: str) -> Path:
    row = dict(zip(COLUMNS, ("m", "h100_sxm", "fp8", "1024", "1024", "4", "4", "80.5", "11.8"), strict=True)) | values
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    return path


def test_points_are_read_in_seconds(tmp_path: Path) -> None:
    (point,) = read_points(write(tmp_path / "p.csv", pp_size="2"))
    assert (0.0805, pytest.approx(0.0118), 4) == (point.ttft_s, point.tpot_s, point.clients)
    assert "pipeline 2" == point.layout


def test_groups_and_the_cache_are_read_where_a_file_tells_them(tmp_path: Path) -> None:
    split = write(tmp_path / "p.csv", attention_dp_size="8", pp_size="1", kv_cache_dtype="fp8_e4m3")
    (point,) = read_points(split)
    assert (4, 8, 1.0) == (point.config.tensor_parallel, point.config.groups, point.config.kv_element_bytes)
    assert ("4 DP 8, fp8 KV", "") == (point.config.split, point.layout)
    with pytest.raises(TraceError, match="line 2: kv_cache_dtype: must be auto, bf16 or fp8, got 'int3'"):
        read_points(write(tmp_path / "q.csv", kv_cache_dtype="int3"))


@pytest.mark.parametrize("value", ["-1", "fast"])
def test_a_wrong_value_names_line_and_field(tmp_path: Path, value: str) -> None:
    with pytest.raises(TraceError, match="line 2: silicon_tpot_ms: must be a number above 0"):
        read_points(write(tmp_path / "p.csv", silicon_tpot_ms=value))


@pytest.mark.parametrize(("field", "value"), [("batch_size", "0.5"), ("tp_size", "1.5"), ("pp_size", "2.5")])
def test_a_part_of_a_whole_number_is_refused(tmp_path: Path, field: str, value: str) -> None:
    """They were rounded down, to 0 GPUs and a traceback."""
    with pytest.raises(TraceError, match=f"line 2: {field}: must be a whole number of at least 1, got '{value}'"):
        read_points(write(tmp_path / "p.csv", **{field: value}))


def test_commas_within_numbers_are_refused(tmp_path: Path) -> None:
    """A prompt of 1,024 tokens was read as one of 1, and all behind it as what is before."""
    with pytest.raises(TraceError, match="line 2: has more values than the header's 9 columns"):
        read_points(write(tmp_path / "p.csv", isl="1,024"))


@pytest.mark.parametrize("value", ["", "0", "nan"])
def test_what_was_not_measured_is_skipped_and_the_rest_is_scored(tmp_path: Path, value: str) -> None:
    file = write(tmp_path / "p.csv", model_path="Qwen/Qwen3-32B")
    row = file.read_text().splitlines()[1].split(",")
    file.write_text(file.read_text() + ",".join([*row[:-1], value]) + "\n")
    result = score(read_points(file)).as_json()
    assert [1] == [each["points"] for each in result["configs"]]
    assert ["no silicon_tpot_ms"] == [each["why"] for each in result["skipped"]]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("model_path,system\nm,h100\n")
    with pytest.raises(TraceError, match="precision: is missing"):
        read_points(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "a", "b", "g"),
    [
        ("llama-3.1-8b", "rtx4090", 1, 17.7e-3, 89.7e-6, 0.083e-6),
        ("llama-3.1-8b", "rtxpro6000", 1, 12.5e-3, 42.0e-6, 0.071e-6),
        ("qwen3-32b", "rtxpro6000", 2, 27.4e-3, 164e-6, 0.087e-6),
    ],
)
def test_the_prior_is_near_engines_that_it_never_saw(
    model: str, gpu: str, ranks: int, a: float, b: float, g: float
) -> None:
    """Step models that were fitted to recorded runs of vLLM 0.19 on other accelerators."""
    made, fitted = prior(load_shape(model), load_gpu(gpu), ranks, "bf16"), StepPrior(StepModel(a, b, g), 0.0)
    shape = Shape(300, 300)
    for batch in (1, 8, 32):
        assert itl_of(fitted, batch, shape, 2048) == pytest.approx(itl_of(made, batch, shape, 2048), rel=0.25)
