"""What is checked of an upload, and for how long nobody else is served meanwhile."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from cluster.settings import JobsSettings
from penstock.v1 import jobs_pb2 as api
from router.jobs.upload import Upload
from router.validation import RequestLimits
from tests.support.stack import request


def test_behind_a_wrong_item_few_more_are_looked_at() -> None:
    """No block leaves any more, so the caller's loop has no turn until the end."""
    items = [api.JobItem(custom_id=f"q{n}", request=request(model="")) for n in range(2_000)]
    for wrong in (40, 41, 250, 1_900):
        items[wrong].custom_id = ""
    upload, blocks = Upload(api.JobHeader(model="demo"), JobsSettings(), RequestLimits()), list[int]()

    with pytest.raises(InvalidRequestError) as caught:
        blocks.extend(map(len, upload.add(api.JobItems(items=items))))

    assert [32] == blocks
    assert [f"items[{n}].custom_id" for n in (40, 41, 250)] == [found.field for found in caught.value.violations]
    assert upload.items < 300
