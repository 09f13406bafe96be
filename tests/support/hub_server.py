"""A server on the loopback that answers as the Hugging Face Hub does, as far as huggingface_hub asks here."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

WRITER, READER = "hf_" + "w" * 34, "hf_" + "r" * 34
"""Tokens: one that may write, and one that may only read."""


@dataclass
class Repository:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str = "") -> str:
        digest = hashlib.sha1(repr((self.branches[branch], sorted(files.items()))).encode()).hexdigest()
        self.commits[digest], self.branches[branch] = files, digest
        self.messages.append(message)
        return digest

    @property
    def files(self) -> dict[str, bytes]:
        """Those of the main branch."""
        return self.commits[self.branches["main"]]


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.cut_off: set[str] = set()  # names of files whose second half doesn't arrive
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextlib.contextmanager
    def serving(self):
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


@contextlib.contextmanager
def running_hub(patch, folder, token=WRITER):
    """Yield a Hub that huggingface_hub in this process uses, with a home in `folder` and this token."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _cache_assets

    with Hub().serving() as hub:
        patch.setattr(constants, "ENDPOINT", hub.address)
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        patch.setattr(_cache_assets, "HF_ASSETS_CACHE", str(folder / "assets"))
        patch.setenv("HF_TOKEN", token)
        yield hub


class _Answer(Exception):
    """Ends a request with a status other than 200."""

    def __init__(self, status: int, code: str = "", body: object = None) -> None:
        self.status, self.code, self.body = status, code, body or {"error": "refused"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self._handle()

    do_HEAD = do_POST = do_GET

    def _handle(self):
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {path}")
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        try:
            if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._resolve(*match.groups())
            else:
                self._send(json.dumps(self._api(path, body)).encode(), {"Content-Type": "application/json"})
        except _Answer as answer:
            headers = {"X-Error-Code": answer.code} if answer.code else {}
            self._send(json.dumps(answer.body).encode(), headers, status=answer.status)

    def _send(self, content, headers, status=200):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _api(self, path, body):
        if path == "/api/whoami-v2":
            return {"type": "user", "name": "ann", "auth": {}} if self.token in (WRITER, READER) else self._refuse(401)
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        kinds = "revision|tree|preupload|commit|branch|auth-check"
        match = re.fullmatch(rf"/api/models/([^/]+/[^/]+)(?:/({kinds})/([^/]+))?", path)
        if match is None:
            self._refuse(404)
        name, kind, revision = match.groups()
        repository = self._repository(name)
        if kind == "branch":
            self._check_writer()
            if revision in repository.branches:
                self._refuse(409)
            repository.branches[revision] = repository.branches["main"]
            return {}
        if kind == "auth-check":
            self._check_writer()
            return {}
        sha = self._sha(repository, revision or "main")
        if kind == "tree":
            return [
                {"type": "file", "path": name, **_described(data)} for name, data in repository.commits[sha].items()
            ]
        if kind == "preupload":
            files = [file["path"] for file in json.loads(body)["files"]]
            return {"files": [{"path": file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}
        if kind == "commit":
            self._check_writer()
            oid = self._commit(repository, revision, [json.loads(line) for line in body.splitlines()])
            return {"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{name}/commit/{oid}"}
        siblings = [{"rfilename": file} for file in repository.commits[sha]]
        return {
            "id": name,
            "modelId": name,
            "sha": sha,
            "private": repository.private,
            "siblings": siblings,
            "tags": [],
        }

    def _create(self, wanted):
        self._check_writer()
        name = f"{wanted.get('organization') or 'ann'}/{wanted['name']}"
        answer = {"url": f"{self.server.address}/{name}"}
        if name in self.server.repositories:
            raise _Answer(409, body=answer)
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        self.server.repositories[name] = Repository(private=private)
        return answer

    def _commit(self, repository, branch, lines):
        files, message = dict(repository.commits[repository.branches[branch]]), ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        return repository.commit(branch, files, message)

    def _resolve(self, name, revision, file):
        repository = self._repository(name)
        sha = self._sha(repository, revision)
        if file not in repository.commits[sha]:
            self._refuse(404, "EntryNotFound")
        content = repository.commits[sha][file]
        headers = {"ETag": f'"{_described(content)["oid"]}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if file in self.server.cut_off and self.command == "GET":
            content = content[: len(content) // 2]
        self._send(content, headers)

    def _repository(self, name):
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and self.token not in (WRITER, READER)):
            self._refuse(404 if self.token else 401, "RepoNotFound")
        return repository

    def _sha(self, repository, revision):
        sha = repository.branches.get(revision, revision)
        return sha if sha in repository.commits else self._refuse(404, "RevisionNotFound")

    def _check_writer(self):
        if self.token != WRITER:
            self._refuse(403)

    def _refuse(self, status, code=""):
        raise _Answer(status, code)


def _described(content):
    return {"size": len(content), "oid": hashlib.sha1(content).hexdigest()}
