"""Images made ready for a model, by vLLM's own processor."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.errors import EngineDeadError, EngineRequestError
from cluster.image_files import MAX_IMAGES, ImageFileError, pixels_of, size_of
from cluster.models import GenerationSpec
from deployments.engines.vllm.images.placeholder import Placeholder, find, text_of

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

MAX_PIXELS_TOGETHER = 256_000_000
"""Most pixels of a prompt's images. They are decoded together, in three bytes each."""
_DECODED = 2
"""Prompts whose images are decoded at the same time: one is processed meanwhile."""
_KEPT = 64
"""Answers that are kept."""
_IMAGE = "image"
_TRIAL = (224, 224)
_TRIALS: tuple[tuple[tuple[int, int], ...], ...] = (((224, 224),), ((37, 41),), ((1_280, 720),), ((480, 960), (64, 64)))
"""Sizes of images by whose tokens processors are told apart."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ImageContent:
    """Images of a prompt, as vLLM's engine takes them."""

    tensors: Any
    names: Any
    """Names by which vLLM's caches know the images."""
    places: Any
    """Places of the images in the prompt."""

    def prompt(self, token_ids: list[int], cache_salt: str | None) -> Any:
        """Return vLLM's prompt with these images."""
        from vllm.inputs.engine import mm_input

        return mm_input(token_ids, self.tensors, self.names, self.places, cache_salt=cache_salt)


class ImageReader:
    """Reader of images for one model. A model that takes none has one too.

    vLLM's processors are not thread-safe, and vLLM uses one of them in a thread of its own at the start. They work in
    that thread, one prompt after another. Files are decoded in another one, so that large ones hold up no measuring.
    """

    def __init__(self, inputs: Any, config: Any) -> None:
        """`inputs`: vLLM's InputProcessor. `config`: its ModelConfig."""
        self._inputs = inputs
        self._config = config
        self._placeholder: Placeholder | None = None
        self._decoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="images")
        self._room = asyncio.Semaphore(_DECODED)
        self._expanded: dict[tuple[tuple[int, int], ...], list[tuple[int, ...]]] = {}
        self.digest = ""
        """Digest of what images of some sizes become; empty where the model takes none."""
        self.most = 0
        """Most images of a prompt; 0 where the model takes none, or nothing stands for one."""

    @property
    def text(self) -> str:
        """Text that stands for an image."""
        return self._placeholder.text if self._placeholder is not None else ""

    @property
    def ids(self) -> tuple[int, ...]:
        """Tokens of that text that the processor replaces."""
        return self._placeholder.ids if self._placeholder is not None else ()

    async def learn(self, try_out: Callable[[], Awaitable[None]]) -> None:
        """Find out what stands for an image, then try one. Where that fails, the model takes none: its text is served.

        `try_out` generates with an image.

        Raises:
            EngineDeadError: the engine did not survive it.
        """
        processor = self._inputs.renderer.mm_processor
        most = min(MAX_IMAGES, processor.info.allowed_mm_limits.get(_IMAGE, 0)) if processor is not None else 0
        if not most or self._config.runner_type != "generate":
            return
        try:
            self._placeholder = await self._with_processor(self._find)
            self.most = most
            await try_out()
            self.digest = await self._told_apart()
        except EngineDeadError:
            raise
        except Exception as error:  # noqa: BLE001 - processors raise exceptions of many kinds
            log.warning("engine.no_images", extra={"error": repr(error)})
            self._placeholder, self.most = None, 0

    async def _told_apart(self) -> str:
        """Return the digest of the processor. Two replicas with one tokenizer may still have two processors."""
        known = hashlib.sha256(repr((self.text, self.ids)).encode())
        for sizes in _TRIALS:
            try:
                known.update(repr(await self.expand(sizes)).encode())
            except EngineRequestError as error:
                # Not every model takes images of every size, or several.
                known.update(repr(str(error)).encode())
        return known.hexdigest()

    async def expand(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return the tokens that images of these sizes become.

        Raises:
            EngineRequestError: the model can't take them.
        """
        key = tuple(sizes)
        self._check_number(len(key))
        self._check_pixels(key)
        if (found := self._expanded.get(key)) is None:
            found = await self._with_processor(partial(self._expand, key))
        return found

    async def read(self, spec: GenerationSpec) -> ImageContent:
        """Decode and process the images of a prompt.

        Raises:
            EngineRequestError: a file is broken, the model can't take the images, or the prompt has not their tokens.
        """
        self._check_number(len(spec.images))
        async with self._room:
            decode = partial(self._decode, spec)
            pictures = await asyncio.get_running_loop().run_in_executor(self._decoder, decode)
            return await self._with_processor(partial(self._put, spec, pictures))

    # --- in threads ---------------------------------------------------------------------------------------------------

    async def _with_processor(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._inputs.renderer._mm_executor, work)

    def _find(self) -> Placeholder:
        from vllm.model_executor.model_loader import get_model_cls

        def put(prompt: list[int]) -> tuple[list[int], int, int]:
            found = self._process(prompt, [_blank(_TRIAL)])
            (place,) = found["mm_placeholders"][_IMAGE]
            return found["prompt_token_ids"], place.offset, place.length

        tokenizer = self._inputs.get_tokenizer()
        return find(text_of(get_model_cls(self._config)), partial(tokenizer.encode, add_special_tokens=False), put)

    def _expand(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        if (known := self._expanded.get(tuple(sizes))) is not None:
            # Other routers, or other processes of one, have asked the same meanwhile.
            return known
        found = [ids for ids, _ in _parts(self._process_alone([_blank(size) for size in sizes]))]
        if len(self._expanded) >= _KEPT:
            del self._expanded[next(iter(self._expanded))]
        self._expanded[tuple(sizes)] = found
        return found

    def _decode(self, spec: GenerationSpec) -> list[Image]:
        self._check_pixels([_of_file(number, size_of, image.data) for number, image in enumerate(spec.images)])
        return [_of_file(number, pixels_of, image.data) for number, image in enumerate(spec.images)]

    def _put(self, spec: GenerationSpec, pictures: Sequence[Image]) -> ImageContent:
        # vLLM's caches of images know them by these names. Those of another salt are never found: otherwise a tenant
        # could tell by the time what images another one has sent.
        salt = spec.cache_salt.encode()
        names = [hashlib.sha256(b"%d:%b%b" % (len(salt), salt, image.data)).hexdigest() for image in spec.images]
        found = self._process_alone(pictures, names)
        places = []
        for number, (image, (ids, place)) in enumerate(zip(spec.images, _parts(found), strict=True)):
            given = tuple(spec.prompt_token_ids[image.offset : image.offset + image.length])
            if given != ids:
                raise EngineRequestError(
                    f"images[{number}]: becomes {len(ids)} tokens, and the prompt has {len(given)} others for it at "
                    f"{image.offset}: the model's processor disagrees with itself, or the image was announced with "
                    f"another size than {pictures[number].width} x {pictures[number].height}"
                )
            places.append(replace(place, offset=image.offset))
        return ImageContent(found["mm_kwargs"], found["mm_hashes"], {_IMAGE: places})

    def _process_alone(self, pictures: Sequence[Image], names: Sequence[str] = ()) -> Any:
        """Process images in a prompt without words. With them around, some processors change the words."""
        if self._placeholder is None:
            raise EngineRequestError("the model takes no images")
        try:
            found = self._process(self._placeholder.prompt(len(pictures)), pictures, names)
            largest = max(place.get_num_embeds() for place in found["mm_placeholders"][_IMAGE])
        except MemoryError:
            raise
        except Exception as error:
            # Processors raise exceptions of many kinds.
            raise EngineRequestError(f"the model's processor refuses the images: {error}") from error
        if largest > self._inputs.mm_encoder_cache_size:
            raise EngineRequestError(
                f"an image becomes {largest} tokens, and the engine has room for {self._inputs.mm_encoder_cache_size}"
            )
        return found

    def _process(self, prompt: list[int], pictures: Sequence[Image], names: Sequence[str] = ()) -> Any:
        from vllm.utils.torch_utils import set_default_torch_num_threads

        renderer = self._inputs.renderer
        processor = renderer.mm_processor
        with set_default_torch_num_threads():
            return processor(
                prompt,
                processor.info.parse_mm_data({_IMAGE: list(pictures)}),
                mm_uuid_items={_IMAGE: list(names)} if names else None,
                # Not the cache that mirrors the engine process'. It counts on every image that it saw being sent, and
                # those of a request that is cancelled meanwhile are not: the engine would lack them for good. Images
                # that are only measured are not worth the room.
                cache=renderer._mm_processor_only_cache if names else None,
            )

    def _check_number(self, images: int) -> None:
        if not self.most:
            raise EngineRequestError("the model takes no images")
        if images > self.most:
            raise EngineRequestError(f"a prompt may have at most {self.most} images, got {images}")

    def _check_pixels(self, sizes: Sequence[tuple[int, int]]) -> None:
        pixels = sum(width * height for width, height in sizes)
        if pixels > MAX_PIXELS_TOGETHER:
            raise EngineRequestError(
                f"the images of a prompt may have at most {MAX_PIXELS_TOGETHER} pixels together, got {pixels}"
            )


def _parts(found: Any) -> list[tuple[tuple[int, ...], Any]]:
    """Return the tokens and the place of each image in what a processor made."""
    ids = found["prompt_token_ids"]
    return [
        (tuple(ids[place.offset : place.offset + place.length]), place) for place in found["mm_placeholders"][_IMAGE]
    ]


def _blank(size: tuple[int, int]) -> Image:
    from PIL.Image import new

    return new("RGB", size)


def _of_file(number: int, read: Callable[[bytes], Result], data: bytes) -> Result:
    try:
        return read(data)
    except ImageFileError as error:
        raise EngineRequestError(f"images[{number}]: {error}") from error
