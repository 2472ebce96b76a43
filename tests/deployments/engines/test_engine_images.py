"""What every engine that sees promises of images, tested on the simulated and the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, PromptImage, ResumeRecord
from penstock.models import FinishReason, SamplingParams
from tests.deployments.engines.conftest import Started
from tests.deployments.engines.recorder import Recorder, begin, generate, greedy
from tests.support.pictures import BLUE, RED, huge, picture

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]

BEFORE, AFTER = (300, 301, 302), (400, 401)


async def asked(
    seeing: Started, files: Sequence[bytes], sizes: Sequence[tuple[int, int]], sampling: SamplingParams | None = None
) -> GenerationSpec:
    """Return a prompt with images between its words."""
    prompt, images = list(BEFORE), []
    for file, ids in zip(files, await seeing.engine.expand_images(sizes), strict=True):
        images.append(PromptImage(file, len(prompt), len(ids)))
        prompt += [*ids, *AFTER]
    return GenerationSpec(tuple(prompt), sampling or greedy(12), images=tuple(images))


def nothing_left(seeing: Started) -> None:
    stats = seeing.engine.stats()
    assert (0, 0, 0) == (stats.running, stats.waiting, stats.prefill_tokens)
    assert not seeing.engine.live_ids()


async def test_an_engine_announces_what_stands_for_an_image(seeing: Started) -> None:
    model = seeing.identity.model
    assert model.capabilities.max_images >= 2
    assert model.image_text
    assert model.image_ids
    assert max(model.image_ids) < model.vocabulary_size


async def test_output_depends_on_the_image(seeing: Started) -> None:
    size = [(64, 64)]
    red, _ = await generate(seeing.engine, await asked(seeing, [picture(color=RED)], size))
    blue, _ = await generate(seeing.engine, await asked(seeing, [picture(color=BLUE)], size))
    again, end = await generate(seeing.engine, await asked(seeing, [picture(color=RED)], size))
    assert red.tokens == again.tokens != blue.tokens
    assert (FinishReason.LENGTH, 12) == (end.reason, end.output_tokens)
    nothing_left(seeing)


async def test_each_size_has_its_tokens(seeing: Started) -> None:
    sizes = [(64, 64), (300, 40)]
    together = await seeing.engine.expand_images(sizes)
    assert 2 == len(together)
    for size, ids in zip(sizes, together, strict=True):
        assert [ids] == await seeing.engine.expand_images([size])
        spec = await asked(seeing, [picture(*size)], [size])
        assert spec.images[0].length == len(ids)
        _, end = await generate(seeing.engine, spec)
        assert (FinishReason.LENGTH, "") == (end.reason, end.error)


async def test_the_order_of_images_counts(seeing: Started) -> None:
    sizes = [(64, 64), (64, 64)]
    red, blue = picture(color=RED), picture(color=BLUE)
    one, _ = await generate(seeing.engine, await asked(seeing, [red, blue], sizes))
    other, _ = await generate(seeing.engine, await asked(seeing, [blue, red], sizes))
    assert one.tokens != other.tokens


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_every_format_is_read(seeing: Started, kind: str) -> None:
    _, end = await generate(seeing.engine, await asked(seeing, [picture(70, 50, kind=kind)], [(70, 50)]))
    assert (FinishReason.LENGTH, "") == (end.reason, end.error)


async def refused(seeing: Started, spec: GenerationSpec) -> str:
    """Return why the engine refuses a sequence, at once or as its end."""
    recorder = Recorder()
    try:
        await seeing.engine.submit("refused", spec, recorder)
    except EngineRequestError as error:
        told = str(error)
    else:
        end = await recorder.end()
        assert (FinishReason.ERROR, True) == (end.reason, end.invalid_request)
        told = end.error
    assert not recorder.tokens
    nothing_left(seeing)
    return told


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (b"GIF nonsense", "no PNG, JPEG, WebP or GIF"),
        (picture(300, 300, kind="JPEG")[:-300], "broken"),
        (huge(10_000, 10_000), "64000000 pixels"),
        (huge(60_000, 60_000), "64000000 pixels"),
    ],
    ids=["no image", "cut", "large", "bomb"],
)
async def test_a_file_that_can_not_be_read_is_the_fault_of_the_request(seeing: Started, file: bytes, says: str) -> None:
    spec = await asked(seeing, [picture(), file], [(64, 64)] * 2)
    told = await refused(seeing, spec)
    assert says in told
    assert "images[1]" in told


async def test_tokens_that_are_not_those_of_the_image_are_refused(seeing: Started) -> None:
    spec = await asked(seeing, [picture(300, 300)], [(64, 64)])
    with_other_size = replace(spec, images=(replace(spec.images[0], data=picture(300, 40)),))
    assert "images[0]" in await refused(seeing, with_other_size)


async def test_more_images_than_the_model_takes_are_refused(seeing: Started) -> None:
    most = seeing.identity.model.capabilities.max_images
    assert most == len(await seeing.engine.expand_images([(64, 64)] * most))
    with pytest.raises(EngineRequestError, match=str(most)):
        await seeing.engine.expand_images([(64, 64)] * (most + 1))


async def test_a_cancel_while_images_are_read_leaves_nothing(seeing: Started) -> None:
    spec = await asked(seeing, [picture(color=RED)], [(64, 64)], greedy(500))
    sequence_id, recorder = await begin(seeing.engine, spec)
    assert sequence_id in seeing.engine.live_ids()
    await seeing.engine.abort([sequence_id])
    assert recorder.ended
    end = await recorder.end()
    assert (FinishReason.CANCELLED, 0, 0.0) == (end.reason, end.output_tokens, end.gpu_seconds)
    nothing_left(seeing)
    # The engine sees the same image as if nothing had been.
    _, after = await generate(seeing.engine, replace(spec, sampling=greedy(4)))
    assert (FinishReason.LENGTH, "") == (after.reason, after.error)


async def test_a_cancel_after_the_first_token_leaves_nothing(seeing: Started) -> None:
    sequence_id, recorder = await begin(seeing.engine, await asked(seeing, [picture()], [(64, 64)], greedy(300)))
    await asyncio.wait_for(recorder.first.wait(), 60)
    await seeing.engine.abort([sequence_id], FinishReason.DEADLINE)
    assert FinishReason.DEADLINE is (await recorder.end()).reason
    nothing_left(seeing)


async def test_a_name_whose_images_are_read_is_in_use(seeing: Started) -> None:
    spec = await asked(seeing, [picture()], [(64, 64)])
    sequence_id, recorder = await begin(seeing.engine, spec)
    with pytest.raises(EngineRequestError, match="live already"):
        await seeing.engine.submit(sequence_id, spec, Recorder())
    assert FinishReason.LENGTH is (await recorder.end()).reason


async def test_a_resumed_sequence_goes_on_token_for_token(seeing: Started) -> None:
    spec = await asked(seeing, [picture(color=BLUE)], [(64, 64)], greedy(20))
    whole, _ = await generate(seeing.engine, spec)
    text = "".join(whole.texts[:7])
    resume = ResumeRecord(tuple(whole.tokens[:7]), len(text), seeing.identity.model.digest)
    rest, end = await generate(seeing.engine, replace(spec, resume=resume))
    assert whole.tokens[7:] == rest.tokens
    assert whole.text == text + rest.text
    assert 13 == end.output_tokens


async def test_the_prefix_cache_knows_images_apart(seeing: Started) -> None:
    size = [(320, 320)]
    words = tuple(310 + number % 90 for number in range(64))

    async def cached(color: tuple[int, int, int], salt: str) -> int:
        spec = await asked(seeing, [picture(320, 320, color=color)], size, greedy(2))
        spec = replace(spec, prompt_token_ids=(*spec.prompt_token_ids, *words), cache_salt=salt)
        _, end = await generate(seeing.engine, spec)
        assert FinishReason.LENGTH is end.reason
        return end.cached_tokens

    green, grey = (0, 200, 0), (90, 90, 90)
    assert 0 == await cached(green, "a tenant")
    assert await cached(green, "a tenant") >= 48
    assert await cached(grey, "a tenant") < 16
    assert 0 == await cached(green, "another tenant")


async def test_images_beside_others_change_nothing(seeing: Started) -> None:
    specs = [
        await asked(seeing, [picture(size, 90, color=(size % 250, 7 * size % 250, 0))], [(size, 90)], greedy(8))
        for size in range(40, 140, 10)
    ]
    alone = [(await generate(seeing.engine, spec))[0].tokens for spec in specs]
    words = GenerationSpec(tuple(range(300, 340)), greedy(60))
    words_alone, _ = await generate(seeing.engine, words)
    # Other salts, so that nothing comes from a cache.
    begun = [await begin(seeing.engine, replace(spec, cache_salt="beside")) for spec in (words, *specs)]
    ends = [await recorder.end() for _, recorder in begun]
    assert {FinishReason.LENGTH} == {end.reason for end in ends}
    assert [words_alone.tokens, *alone] == [recorder.tokens for _, recorder in begun]
    nothing_left(seeing)


async def test_log_probabilities_of_a_prompt_with_an_image_are_those_of_its_words(seeing: Started) -> None:
    spec = await asked(seeing, [picture()], [(64, 64)], greedy(2, prompt_logprobs=0))
    recorder, _ = await generate(seeing.engine, spec)
    assert recorder.prompt is not None
    assert len(spec.prompt_token_ids) - 1 == recorder.prompt.rows


async def test_a_spec_with_prior_output_that_is_complete_ends_at_once(seeing: Started) -> None:
    spec = await asked(seeing, [picture(color=BLUE)], [(64, 64)], greedy(20))
    whole, _ = await generate(seeing.engine, spec)
    stop = whole.tokens[5]
    sampling = greedy(20, stop_token_ids=(stop,))
    stopped, _ = await generate(seeing.engine, replace(spec, sampling=sampling))
    resume = ResumeRecord(tuple(stopped.tokens), len(stopped.text), seeing.identity.model.digest)
    rest, end = await generate(seeing.engine, replace(spec, sampling=sampling, resume=resume))
    assert ([], FinishReason.STOP, str(stop)) == (rest.tokens, end.reason, end.stop_match)
    nothing_left(seeing)


async def test_what_stands_for_an_image_without_one_is_a_token_like_others(seeing: Started) -> None:
    """As in token ids of a client: nothing may happen to others."""
    named = (*BEFORE, *seeing.identity.model.image_ids, *AFTER)
    _, end = await generate(seeing.engine, GenerationSpec(named, greedy(4)))
    assert (FinishReason.LENGTH, "") == (end.reason, end.error)
    spec = await asked(seeing, [picture()], [(64, 64)], greedy(4))
    _, end = await generate(seeing.engine, replace(spec, prompt_token_ids=(*spec.prompt_token_ids, *named)))
    assert (FinishReason.LENGTH, "") == (end.reason, end.error)
    nothing_left(seeing)
