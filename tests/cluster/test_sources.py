"""What a text that names a model or an adapter means."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.sources import ModelSource, SourceKind, source_of


@pytest.mark.parametrize("url", ["s3://bucket/m", "gs://bucket/a/b", "az://container/m", "S3://bucket/m"])
def test_a_url_of_an_object_store_stays_as_it_is(url: str) -> None:
    found = source_of(url)
    assert (url, SourceKind.STORE) == (found.engine_name, found.kind)
    assert url.partition(":")[0].lower() == found.scheme


def test_a_slash_at_its_end_names_the_same_prefix() -> None:
    assert source_of("s3://bucket/m") == source_of("s3://bucket/m/")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3:/bucket/m", "must have two slashes after s3: as a URL, got 's3:/bucket/m'"),
        ("gs:bucket/m", "must have two slashes after gs: as a URL"),
        ("https://host/m", "a URL that begins with s3://, gs://, az://, got 'https://host/m'"),
        ("file:///models/m", "must be a folder, a hub id, or a URL"),
        ("s3://", "must name a bucket after s3://"),
        ("s3:///", "must name a bucket after s3://"),
    ],
)
def test_another_url_is_refused_with_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        source_of(text)


def test_a_folder_and_a_file_are_known_by_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "poet.zip").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert SourceKind.FOLDER is source_of("org/name").kind
    assert str((tmp_path / "org" / "name").resolve()) == source_of("org/name").engine_name
    assert SourceKind.ARCHIVE is source_of("./poet.zip").kind


@pytest.mark.parametrize("text", ["/nowhere/m", "./m", "../m", "~/m", "a b/c", "org/name/more"])
def test_what_can_be_no_hub_id_is_a_folder_even_where_it_is_missing(text: str) -> None:
    assert SourceKind.FOLDER is source_of(text).kind


def test_a_hub_id_has_its_own_revision_or_the_given_one() -> None:
    assert ModelSource("org/name", SourceKind.HUB, "") == source_of("org/name")
    assert ModelSource("gpt2", SourceKind.HUB, "v1") == source_of("gpt2", "v1")
    assert ModelSource("org/name", SourceKind.HUB, "abc") == source_of("org/name@abc", "v1")
    assert "org/name" == source_of("org/name@abc").engine_name
