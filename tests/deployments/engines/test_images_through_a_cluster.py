"""Images from a client to a real engine: the prompt is that of the model's own processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from PIL import Image as Pictures

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.support.pictures import BLUE, RED, picture
from tests.support.stack import running_stack
from tests.support.vision_model import IMAGE_TEMPLATE, TEXT_TEMPLATE, make_vision_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


def chat(*parts: str | bytes) -> types.Prompt:
    content = [
        types.ContentPart(text=part) if isinstance(part, str) else types.ContentPart(image=types.Image(data=part))
        for part in parts
    ]
    return types.Prompt(chat=types.ChatPrompt(messages=[types.ChatMessage(role="user", parts=content)]))


def asked(prompt: types.Prompt) -> api.GenerateRequest:
    sampling = types.SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    return api.GenerateRequest(model="eyes", prompt=prompt, sampling=sampling)


@pytest.mark.parametrize("template", [IMAGE_TEMPLATE, TEXT_TEMPLATE], ids=["writes images", "takes text"])
async def test_images_through_a_cluster(tmp_path: Path, template: str) -> None:
    from transformers import AutoProcessor

    model = make_vision_model(tmp_path, template=template)
    vllm = {
        "dtype": "float32",
        "kv_cache_memory_mb": 64,
        "max_num_seqs": 8,
        "extra": {"limit_mm_per_prompt": {"image": 2}},
    }
    pools: dict[str, Any] = {"eyes": {"model": str(model), "vllm": vllm}}
    async with running_stack(tmp_path, pools=pools) as stack:
        stub = stack.inference()
        red, blue = picture(200, 90, RED), picture(64, 64, BLUE)
        found = [
            await stub.Generate(asked(chat("What is ", first, " beside ", second)))
            for first, second in ((red, blue), (blue, red), (red, blue))
        ]
        outputs = [list(each.choices[0].token_ids) for each in found]
        assert outputs[0] == outputs[2] != outputs[1]
        assert {8} == set(map(len, outputs))

        counted = await stub.CountTokens(api.CountTokensRequest(model="eyes", prompt=chat("What is ", red)))
        own = AutoProcessor.from_pretrained(model)
        joined = "What is <image>" if template == IMAGE_TEMPLATE else "What is \n<image>"
        whole = own(text=f"user: {joined}\nassistant:", images=[Pictures.new("RGB", (200, 90))])["input_ids"][0]
        assert len(whole) == counted.tokens

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(asked(chat("Three: ", red, red, red)))
        assert (grpc.StatusCode.INVALID_ARGUMENT, True) == (
            refused.value.code(),
            "at most 2 images" in str(refused.value.details()),
        )
        cut = picture(300, 300, kind="JPEG")[:-300]
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await stub.Generate(asked(chat("Broken: ", cut)))
        assert grpc.StatusCode.INVALID_ARGUMENT is broken.value.code()
        assert "broken" in str(broken.value.details())
        assert 0 == stack.replicas[0].table.sequences
