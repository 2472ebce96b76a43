"""The tokenizer digest tells different files apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.digests import tokenizer_digest

files = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.binary(max_size=4))


@pytest.mark.slow
@given(files, files)
def test_digests_are_equal_exactly_for_equal_files(one: dict[str, bytes], other: dict[str, bytes]):
    assert (one == other) == (tokenizer_digest(one) == tokenizer_digest(other))


def test_order_of_files_does_not_matter():
    assert tokenizer_digest({"a": b"1", "b": b"2"}) == tokenizer_digest({"b": b"2", "a": b"1"})


def test_the_digest_is_fixed_across_versions():
    """Routers keep files on disk under this name; another value would orphan every cache."""
    expected = "0e9c3156ac694b081269e7631db910df955a4df29e20086134d7aa57f4e54795"

    assert expected == tokenizer_digest({"a": b"1"})
