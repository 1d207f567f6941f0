"""A small hub over HTTP, with the part of its interface that pushing and pulling a model needs."""

import base64
import contextlib
import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants

from doubles.listeners import Exchange, listening


@dataclass(slots=True, kw_only=True)
class FakeHub:
    """The content of the hub, and its address."""

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    private: dict[str, bool] = field(default_factory=dict[str, bool])
    messages: list[str] = field(default_factory=list[str])

    def commit(self, repository: str) -> str:
        """The id of the newest commit: a digest over all files."""
        files = sorted(self.repositories[repository].items())
        return hashlib.sha1(repr(files).encode()).hexdigest()  # noqa: S324 - git's ids are SHA-1


@contextlib.contextmanager
def running_hub() -> Generator[FakeHub]:
    """Run a hub on a free port, which is the hub of this process."""
    hub = FakeHub()
    with listening(partial(_Exchange, hub)) as hub.address:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
        here = {"ENDPOINT": hub.address, "HUGGINGFACE_CO_URL_TEMPLATE": template}
        with mock.patch.multiple(constants, **here):
            yield hub


class _Exchange(Exchange):
    def __init__(self, hub: FakeHub, *args: Any) -> None:  # noqa: ANN401 - the signature of the base class
        self._hub = hub
        super().__init__(*args)

    def reply(self) -> None:
        if self.command == "POST":
            self._take(self.body())
        else:
            self._give()

    def _take(self, body: bytes) -> None:
        match self._path():
            case ["api", "repos", "create"]:
                asked = json.loads(body)
                name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
                self._hub.repositories.setdefault(name, {})
                self._hub.private.setdefault(name, asked.get("visibility") == "private")
                self._json({"url": f"{self._hub.address}/{name}"})
            case ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            case ["api", "models", _, _, "preupload", _]:
                files = [
                    {"path": it["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for it in json.loads(body)["files"]
                ]
                self._json({"files": files})
            case ["api", "models", owner, name, "commit", _]:
                self._add(f"{owner}/{name}", [json.loads(line) for line in body.splitlines()])
            case _:
                self._missing()

    def _give(self) -> None:
        match self._path():
            case ["api", "models", owner, name, *_] if f"{owner}/{name}" in self._hub.repositories:
                self._describe(f"{owner}/{name}")
            case [owner, name, "resolve", commit, path]:
                self._file(f"{owner}/{name}", commit, path)
            case _:
                self._missing()

    def _path(self) -> list[str]:
        return unquote(urlsplit(self.path).path).strip("/").split("/")

    def _add(self, repository: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self._hub.messages.append(value["summary"])
            else:
                content = base64.b64decode(value["content"])
                self._hub.repositories[repository][value["path"]] = content
        commit = self._hub.commit(repository)
        url = f"{self._hub.address}/{repository}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url})

    def _describe(self, repository: str) -> None:
        files = self._hub.repositories[repository]
        if "tree" in self._path():
            self._json(
                [
                    {"type": "file", "path": path, "size": len(data), "oid": _blob_id(data)}
                    for path, data in files.items()
                ]
            )
        else:
            siblings = [{"rfilename": path} for path in files]
            commit = self._hub.commit(repository)
            self._json({"id": repository, "sha": commit, "siblings": siblings})

    def _file(self, repository: str, commit: str, path: str) -> None:
        files = self._hub.repositories.get(repository, {})
        if path not in files or commit != self._hub.commit(repository):
            self._missing()
            return
        headers = {"ETag": f'"{_blob_id(files[path])}"', "X-Repo-Commit": commit}
        self.answer(HTTPStatus.OK, files[path], headers)

    def _missing(self) -> None:
        self.answer(HTTPStatus.NOT_FOUND, b"", {"X-Error-Code": "RepoNotFound"})

    def _json(self, value: object) -> None:
        headers = {"Content-Type": "application/json"}
        self.answer(HTTPStatus.OK, json.dumps(value).encode(), headers)


def _blob_id(data: bytes) -> str:
    """Return git's name of a file's content."""
    return hashlib.sha1(b"blob %d\x00" % len(data) + data).hexdigest()  # noqa: S324 - git's choice
