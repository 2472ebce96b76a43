"""The page of the API, from the .proto files as protoc reads them, comments included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from reference.markdown import code, page, prose, slug, table

SOURCES = Path(__file__).resolve().parents[2] / "proto"
FILES = ("inference", "embeddings", "jobs", "admin", "records", "registry", "rollout", "announced", "outlook", "types")
"""In the order in which the page has them."""
PACKAGE = ".penstock.v1."
INTRO = """The package `penstock.v1`: services, messages and enums, with units, ranges and defaults. How to call it:
[router](../../router/README.md). What stays as it is: [What v1 promises](../README.md#what-v1-promises)."""
LABELS = {FieldDescriptorProto.LABEL_REPEATED: "repeated "}

Path_ = tuple[int, ...]
"""Where an element stands in its file, as descriptors count: numbers of fields and places in lists."""


def render() -> str:
    """Return the page."""
    files = _descriptors()
    links = []
    sections = []
    for name in FILES:
        title = f"{name}.proto"
        file = files[f"penstock/v1/{title}"]
        links.append(f"- [`{title}`](#{slug(title)}): {_opening(title)}")
        sections += [
            f"## {title}\n\n{_opening(title)} Source: [`{title}`](../penstock/v1/{title})",
            *_File(file).parts(),
        ]
    return page("API", INTRO, "\n".join(links), *sections)


def _descriptors() -> dict[str, FileDescriptorProto]:
    names = [f"penstock/v1/{name}.proto" for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        flags = [f"-I{SOURCES}", f"--descriptor_set_out={out}", "--include_source_info"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *flags, *names], check=True, cwd=SOURCES)
        read = FileDescriptorSet.FromString(out.read_bytes())
    return {file.name: file for file in read.file}


def _opening(title: str) -> str:
    """Return the comment that a file begins with."""
    lines = (SOURCES / "penstock" / "v1" / title).read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("//"):
            break
        comment.append(line.removeprefix("//"))
    return prose("\n".join(comment))


class _File:
    """Text of one file's elements."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments: Mapping[Path_, str] = {
            tuple(place.path): place.leading_comments or place.trailing_comments
            for place in file.source_code_info.location
        }

    def parts(self) -> Iterator[str]:
        """Yield services, messages, enums; descriptors number them 6, 4 and 5."""
        for number, service in enumerate(self._file.service):
            yield self._service(service, (6, number))
        for number, message in enumerate(self._file.message_type):
            yield from self._message(message, (4, number), "")
        for number, each in enumerate(self._file.enum_type):
            yield self._enum(each, (5, number), "")

    def _comment(self, *path: int) -> str:
        return prose(self._comments.get(path, ""))

    def _service(self, service: ServiceDescriptorProto, path: Path_) -> str:
        rows = [
            [
                code(method.name),
                _stream(method.client_streaming, method.input_type),
                _stream(method.server_streaming, method.output_type),
                self._comment(*path, 2, number),
            ]
            for number, method in enumerate(service.method)
        ]
        head = table(["method", "request", "response", "meaning"], rows)
        return f"### {service.name}\n\n{self._comment(*path)}\n\n{head}"

    def _message(self, message: DescriptorProto, path: Path_, outer: str) -> Iterator[str]:
        name = outer + message.name
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        rows = [
            [code(each.name), _type(each, maps), _grouped(message, each), self._comment(*path, 2, number)]
            for number, each in enumerate(message.field)
        ]
        parts = [f"### {name}", self._comment(*path)]
        grouped = [
            f"- {code(oneof.name)}: {self._comment(*path, 8, number)}"
            for number, oneof in enumerate(message.oneof_decl)
            if not oneof.name.startswith("_")
        ]
        if rows:
            if any(row[2] for row in rows):
                parts.append(table(["field", "type", "one of", "meaning"], rows))
            else:
                parts.append(table(["field", "type", "meaning"], [[row[0], row[1], row[3]] for row in rows]))
        if grouped:
            parts.append("Of each group one field can be set:\n\n" + "\n".join(grouped))
        yield "\n\n".join(part for part in parts if part)
        for number, each in enumerate(message.nested_type):
            if each.name not in maps:
                yield from self._message(each, (*path, 3, number), f"{name}.")
        for number, inner in enumerate(message.enum_type):
            yield self._enum(inner, (*path, 4, number), f"{name}.")

    def _enum(self, enum: EnumDescriptorProto, path: Path_, outer: str) -> str:
        rows = [
            [code(value.name), str(value.number), self._comment(*path, 2, number)]
            for number, value in enumerate(enum.value)
        ]
        return f"### {outer}{enum.name}\n\n{self._comment(*path)}\n\n{table(['value', 'number', 'meaning'], rows)}"


def _grouped(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return code(message.oneof_decl[field.oneof_index].name)


def _stream(streaming: bool, name: str) -> str:
    return f"{'stream of ' if streaming else ''}{_link(name)}"


def _type(field: FieldDescriptorProto, maps: Mapping[str, DescriptorProto]) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map of {_plain(key)} to {_plain(value)}"
    optional = "optional " if field.proto3_optional else ""
    return f"{optional}{LABELS.get(field.label, '')}{_plain(field)}"


def _plain(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return code(FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower())


def _link(name: str) -> str:
    if not name.startswith(PACKAGE):
        return code(name.removeprefix("."))
    own = name.removeprefix(PACKAGE)
    return f"[`{own}`](#{slug(own)})"
