"""What callers may write against the client. It is type-checked and never run."""

from __future__ import annotations

from typing import assert_type

from penstock.client import (
    AsyncClient,
    Client,
    ClusterStatus,
    Completion,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerateOptions,
    Job,
    JobItem,
    JobPage,
    JobUpdate,
    Message,
    ModelDescription,
    RequestClass,
    ResumePoint,
    Sampling,
    TokenCount,
    json_schema,
)


def threads() -> None:
    """Use the client for threads."""
    Client(api_key="psk", allow_plaintext_key=True).close()
    with Client(["a:1", "b:1"], metadata=lambda: [("x-trace", "1")], api_key=lambda: "psk", timeout=5) as client:
        assert_type(client.generate("m", "text"), Completion)
        assert_type(client.generate("m", [Message("user", "hi")], Sampling(max_tokens=4)).text, str)
        assert_type(client.generate("m", "text", max_tokens=4, temperature=0, stop="\n"), Completion)
        assert_type(client.generate("m", {"role": "user", "content": "hi"}, {"max_tokens": 4}), Completion)
        history: list[dict[str, str]] = [{"role": "user", "content": "hi"}]
        assert_type(client.generate("m", history, max_tokens=4), Completion)
        client.generate("m", "text", max_token=4)  # type: ignore[call-arg]  # a type checker names it as well
        client.generate("m", "text", temperature="hot")  # type: ignore[arg-type]
        assert_type(client.count_tokens("m", [1, 2, 3]), TokenCount)
        assert_type(client.list_models(), tuple[ModelDescription, ...])
        assert_type(client.get_model("m"), ModelDescription)
        assert_type(client.cluster_status(), ClusterStatus)
        assert_type(client.cancel(request_id="r"), str)
        assert_type(client.submit_job("m", [JobItem("a", "text")]), Job)
        assert_type(client.list_jobs(), JobPage)
        for update in client.watch_job("j"):
            assert_type(update, JobUpdate)
        with client.stream("m", "text", flush_interval=0.02) as stream:
            for event in stream:
                assert_type(event, Event)
                if isinstance(event, Delta):
                    assert_type(event.token_ids, tuple[int, ...])
                elif isinstance(event, Finished):
                    assert_type(event.choices[0].finish_reason, FinishReason)
            assert_type(stream.resume_point, ResumePoint | None)


async def loop() -> None:
    """Use the client for asyncio."""
    async with AsyncClient() as client:
        options = GenerateOptions(request_class=RequestClass.BATCH, queue_timeout=1.5)
        sampling = Sampling(structured=json_schema({"type": "object"}), logit_bias={1: 2.0}, stop=["\n"])
        assert_type(await client.generate("m", "text", sampling, options, timeout=2), Completion)
        assert_type(await client.generate("m", "text", max_tokens=4), Completion)
        async with client.stream("m", "text", max_tokens=4, resume=ResumePoint(b"t", (3,))) as stream:
            async for event in stream:
                assert_type(event, Event)
