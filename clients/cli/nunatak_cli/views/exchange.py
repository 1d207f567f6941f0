"""A version that came from elsewhere, in a few lines and as JSON."""

from pydantic import JsonValue
from rich.text import Text

from nunatak_cli.exchange import Published
from nunatak_registry.cards import method_text, shared_text


def published_lines(published: Published, *, alias: str | None) -> Text:
    """What was found, and what it is called here."""
    manifest = published.manifest
    default = manifest.head.default_label
    lines = [
        published.found,
        f"method {method_text(manifest.method)}; shared layers {shared_text(manifest)}",
        f"published {manifest.reference}",
        *([] if default is None else [f"default label {default}"]),
        *([] if alias is None else [f"{manifest.task}@{alias} -> version {manifest.version}"]),
    ]
    return Text("\n".join(lines))


def published_json(published: Published, *, alias: str | None) -> dict[str, JsonValue]:
    """The published version and what was found."""
    manifest = published.manifest
    return {
        "reference": manifest.reference,
        "task": manifest.task,
        "version": manifest.version,
        "alias": alias,
        "found": published.found,
        "method": manifest.method.kind,
        "split_depth": manifest.split_depth,
        "labels": list(manifest.head.labels),
        "default_label": manifest.head.default_label,
        "max_length": manifest.max_length,
        "on_long": manifest.reads_long,
        "note": manifest.note,
    }
