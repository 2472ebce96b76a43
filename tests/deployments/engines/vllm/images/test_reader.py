"""Images on their way through vLLM's processor, without an engine."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cluster.errors import EngineDeadError, EngineRequestError
from cluster.image_files import pixels_of
from cluster.models import GenerationSpec, PromptImage
from deployments.engines.vllm.images.reader import ImageReader
from tests.deployments.engines.recorder import greedy
from tests.support.pictures import BLUE, RED, picture, written
from tests.support.vision_model import make_vision_model
from tests.support.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

SIZES = [(64, 64), (200, 100)]


async def nothing() -> None:
    pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("vision"))


def inputs_of(model: Path, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.input_processor import InputProcessor

    config = AsyncEngineArgs(
        model=str(model), dtype="float32", enforce_eager=True, enable_chunked_prefill=False, **arguments
    ).create_engine_config()
    return InputProcessor(config)


@pytest.fixture(scope="module")
def inputs(model: Path) -> Any:
    return inputs_of(model, limit_mm_per_prompt={"image": 3})


@pytest.fixture
async def reader(inputs: Any) -> ImageReader:
    found = ImageReader(inputs, inputs.model_config)
    await found.learn(nothing)
    return found


async def spec_of(reader: ImageReader, *files: bytes, salt: str = "") -> GenerationSpec:
    prompt, images = [50], []
    sizes = [pixels_of(file).size for file in files]
    for file, ids in zip(files, await reader.expand(sizes), strict=True):
        images.append(PromptImage(file, len(prompt), len(ids)))
        prompt += [*ids, 51]
    return GenerationSpec(tuple(prompt), greedy(), cache_salt=salt, images=tuple(images))


async def test_the_placeholder_and_the_limit_are_the_models_own(reader: ImageReader, inputs: Any) -> None:
    tokenizer = inputs.get_tokenizer()
    assert (3, "<image>") == (reader.most, reader.text)
    assert (tokenizer.convert_tokens_to_ids("<image>"),) == reader.ids


async def test_tokens_are_those_that_the_models_own_processor_makes(
    reader: ImageReader, model: Path, inputs: Any
) -> None:
    from transformers import AutoProcessor

    own = AutoProcessor.from_pretrained(model)
    tokenizer = inputs.get_tokenizer()
    for size, ids in zip(SIZES, await reader.expand(SIZES), strict=True):
        made = own(text="a<image>a", images=[Image.new("RGB", size)])["input_ids"][0]
        around = tokenizer.encode("a", add_special_tokens=False)
        assert [*around, *ids, *around] == list(made)


async def test_images_are_put_where_their_tokens_are(reader: ImageReader) -> None:
    spec = await spec_of(reader, picture(64, 64, RED), picture(200, 100, BLUE))
    content = await reader.read(spec)
    places = content.places["image"]
    assert [(image.offset, image.length) for image in spec.images] == [(each.offset, each.length) for each in places]
    assert 2 == len(content.tensors["image"]) == len(content.names["image"])


async def test_caches_know_an_image_by_its_file_and_its_tenant(reader: ImageReader) -> None:
    async def names(*files: bytes, salt: str = "") -> list[str]:
        return list((await reader.read(await spec_of(reader, *files, salt=salt))).names["image"])

    red, blue = picture(color=RED), picture(color=BLUE)
    first, second = await names(red, blue)
    assert [first] == await names(red)
    assert first != second
    assert [first] != await names(red, salt="a tenant") != await names(red, salt="another")


async def test_the_cache_that_mirrors_the_engine_process_sees_nothing(reader: ImageReader, inputs: Any) -> None:
    """A request that is cancelled now is never sent, and the engine process would lack its image for good."""
    spec = await spec_of(reader, picture(80, 80, (9, 9, 9)))
    name = (await reader.read(spec)).names["image"][0]
    assert not inputs.renderer.mm_processor_cache.is_cached_item(name)
    again = await reader.read(spec)
    assert again.tensors["image"][0] is not None


async def test_images_are_measured_while_others_are_decoded(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = await spec_of(reader, picture(91, 92))
    goes_on, decoding, most = threading.Event(), [0], [0]

    def held(data: bytes) -> Image.Image:
        decoding[0] += 1
        most[0] = max(most[0], decoding[0])
        assert goes_on.wait(60)
        decoding[0] -= 1
        return pixels_of(data)

    monkeypatch.setattr("deployments.engines.vllm.images.reader.pixels_of", held)
    reads = [asyncio.create_task(reader.read(spec)) for _ in range(4)]
    await until(lambda: decoding[0] == 1)
    assert 1 == len(await reader.expand([(93, 94)]))
    # One that is cancelled makes room, and is not waited for.
    reads[2].cancel()
    goes_on.set()
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [False, False, True, False] == [isinstance(each, asyncio.CancelledError) for each in found]
    assert 1 == most[0]


async def test_what_several_ask_at_the_same_time_is_processed_once(
    reader: ImageReader, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, processed = threading.Event(), []
    process_alone = reader._process_alone

    def counted(pictures: Any, names: Any = ()) -> Any:
        processed.append(len(pictures))
        return process_alone(pictures, names)

    monkeypatch.setattr(reader, "_process_alone", counted)
    held = inputs.renderer._mm_executor.submit(goes_on.wait, 60)
    asked = [asyncio.create_task(reader.expand([(95, 96)])) for _ in range(5)]
    await asyncio.sleep(0)
    goes_on.set()
    found = await asyncio.gather(*asked)
    assert held.result()
    assert 5 * [found[0]] == found
    assert [1] == processed


async def test_work_is_done_in_one_thread(reader: ImageReader, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    process = ImageReader._process

    def noting(self: ImageReader, *arguments: Any) -> Any:
        used.add(threading.current_thread().name)
        return process(self, *arguments)

    monkeypatch.setattr(ImageReader, "_process", noting)
    await reader.read(await spec_of(reader, picture(90, 90)))
    assert 1 == len(used)
    assert threading.main_thread().name not in used


async def test_the_same_sizes_are_measured_once(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await reader.expand(SIZES)
    monkeypatch.setattr(ImageReader, "_process", lambda *_: pytest.fail("measured again"))
    assert first == await reader.expand(SIZES)


async def test_other_tokens_in_the_prompt_are_told(reader: ImageReader) -> None:
    spec = await spec_of(reader, picture(64, 64), picture(200, 100))
    swapped = GenerationSpec(
        spec.prompt_token_ids,
        spec.sampling,
        images=tuple(
            PromptImage(other.data, one.offset, one.length)
            for one, other in zip(spec.images, reversed(spec.images), strict=True)
        ),
    )
    with pytest.raises(EngineRequestError, match=r"images\[0\]: becomes \d+ tokens, and the prompt has .* 200 x 100"):
        await reader.read(swapped)


async def test_too_many_images_and_pixels_are_refused(reader: ImageReader) -> None:
    with pytest.raises(EngineRequestError, match="at most 3 images, got 4"):
        await reader.expand([(10, 10)] * 4)
    reader.most = 9
    with pytest.raises(EngineRequestError, match="at most 256000000 pixels together, got 320000000"):
        await reader.expand([(8_000, 8_000)] * 5)


async def test_an_image_that_the_encoder_has_no_room_for_is_refused(
    reader: ImageReader, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "mm_encoder_cache_size", 3)
    with pytest.raises(EngineRequestError, match=r"becomes \d+ tokens, and the engine has room for 3"):
        await reader.expand([(77, 78)])


async def test_a_processor_that_fails_is_the_fault_of_the_image(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("aspect ratio must be smaller than 200")

    monkeypatch.setattr(ImageReader, "_process", fail)
    with pytest.raises(EngineRequestError, match="refuses the images: aspect ratio must be smaller than 200"):
        await reader.expand([(600, 2)])


async def test_a_model_whose_image_can_not_be_tried_takes_none(inputs: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise EngineRequestError("the prompt is too long")

    reader = ImageReader(inputs, inputs.model_config)
    await reader.learn(fail)
    assert (0, "", ()) == (reader.most, reader.text, reader.ids)
    assert "engine.no_images" in caplog.messages
    for call in (reader.expand(SIZES), reader.read(GenerationSpec((1,), greedy(), images=(PromptImage(b"", 0, 1),)))):
        with pytest.raises(EngineRequestError, match="the model takes no images"):
            await call


async def test_a_model_may_refuse_images_of_some_sizes(inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ImageReader._process

    def refuse_wide(self: ImageReader, prompt: list[int], pictures: Any, *names: Any) -> Any:
        if any(each.width > 1_000 for each in pictures):
            raise ValueError("too wide")
        return process(self, prompt, pictures, *names)

    async def digest() -> str:
        reader = ImageReader(inputs, inputs.model_config)
        await reader.learn(nothing)
        assert 3 == reader.most
        return reader.digest

    with monkeypatch.context() as patch:
        patch.setattr(ImageReader, "_process", refuse_wide)
        refusing = await digest()
    assert "" != refusing != await digest()


async def test_an_engine_that_dies_of_an_image_does_not_start(inputs: Any) -> None:
    async def die() -> None:
        raise EngineDeadError("the engine died")

    with pytest.raises(EngineDeadError):
        await ImageReader(inputs, inputs.model_config).learn(die)


async def test_a_limit_of_0_images_is_a_model_without_images(model: Path) -> None:
    inputs = inputs_of(model, limit_mm_per_prompt={"image": 0})
    reader = ImageReader(inputs, inputs.model_config)
    await reader.learn(nothing)
    assert 0 == reader.most


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGBA", "PNG"), ("LA", "PNG"), ("P", "GIF"), ("L", "PNG"), ("CMYK", "JPEG")]
)
@pytest.mark.parametrize("orientation", [1, 2, 5, 6, 8])
def test_pixels_are_those_of_vllms_own_loader(mode: str, kind: str, orientation: int) -> None:
    from vllm.multimodal.media.image import ImageMediaIO

    exif = Image.Exif()
    exif[0x0112] = orientation
    noise = Image.effect_noise((24, 12), 80)
    image = Image.merge("RGBA", [noise, noise.rotate(180), noise, noise.rotate(180)]).convert(
        mode if mode != "CMYK" else "RGB"
    )
    file = written(image.convert(mode), kind, **({"exif": exif.tobytes()} if kind != "GIF" else {}))
    own = ImageMediaIO().load_bytes(file).media
    assert np.array_equal(np.asarray(own), np.asarray(pixels_of(file)))
