"""A small Hub on loopback, in memory: enough of its calls for the real client to create, upload, commit and load.

``Hub`` keeps repositories as branches of commits; names of dataset repositories begin with "datasets/". ``failures``
makes calls fail: a key is the kind of call ("whoami", "create", "upload", "commit", ...), a value is a status to answer
with, "drop" to hang up in the middle of the request, "lose" to do what is asked and then hang up, or "race" to let
someone else commit first.
"""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_loopbackLoopbackLoopback1234"
CALLS = {
    "whoami": r"GET /api/whoami-v2",
    "validate": r"POST /api/validate-yaml",
    "create": r"POST /api/repos/create",
    "preupload": r"POST /api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<revision>.+)",
    "commit": r"POST /api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<revision>.+)",
    "branch": r"POST /api/models/(?P<repo>[^/]+/[^/]+)/branch/(?P<revision>.+)",
    "commits": r"GET /api/models/(?P<repo>[^/]+/[^/]+)/commits/(?P<revision>.+)",
    "tree": r"GET /api/(models/)?(?P<repo>(datasets/)?[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(/(?P<path>.+))?",
    "paths": r"POST /api/(?P<repo>datasets/[^/]+/[^/]+)/paths-info/(?P<revision>[^/]+)",
    "info": r"GET /api/(models/)?(?P<repo>(datasets/)?[^/]+/[^/]+)(/revision/(?P<revision>.+))?",
    "batch": r"POST /(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch",
    "upload": r"PUT /lfs/(?P<oid>\w+)",
    "resolve": r"(GET|HEAD) /(?P<repo>(datasets/)?[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)",
}
# Calls that need no token.
_PUBLIC = ("upload", "resolve", "info", "tree", "paths")
Files = dict[str, bytes]


@dataclass
class Repository:
    """Commits by id, branches by name, and who may see it."""

    private: bool = False
    gated: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: Files) -> str:
        number = f"{len(self.commits)}/{sorted(files)}/{branch}"
        oid = hashlib.sha1(number.encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid

    def find(self, revision: str | None) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision or "main")


class Hub:
    """The server; use it as a context."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: Files = {}
        self.committed: list[str] = []  # the files of the last commit
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, int | str] = {}
        self.times: dict[str, int] = {}  # how often a call fails; always if it is not listed
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, repo: str, files: Files | None = None, *, private: bool = False, gated: bool = False) -> Repository:
        """Make a repository as the Hub does, with .gitattributes and these files."""
        made = self.repositories[repo] = Repository(private=private, gated=gated)
        made.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n", **(files or {})})
        return made

    def files(self, repo: str, revision: str = "main") -> Files:
        found = self.repositories[repo]
        oid = found.find(revision)
        assert oid is not None
        return found.commits[oid]


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".png"))


def _git_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _entries(files: Files) -> list[dict[str, Any]]:
    """Return the files as a list of them names them."""
    return [{"type": "file", "path": name, "size": len(data), "oid": _git_id(data)} for name, data in files.items()]


def _folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    losing = False

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_GET

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        line = f"{self.command} {parts.path}"
        for name, pattern in CALLS.items():
            match = re.fullmatch(pattern, line)
            if match:
                return self._answer(name, {k: unquote(v) for k, v in match.groupdict().items() if v is not None})
        self.hub.calls["unknown"] += 1
        return self._reply(404, {"error": f"no such call: {line}"})

    def _answer(self, name: str, parts: dict[str, str]) -> None:
        hub = self.hub
        hub.calls[name] += 1
        failure = hub.failures.get(name)
        if failure is not None and hub.times.get(name, 1) > 0:
            if name in hub.times:
                hub.times[name] -= 1
            if failure == "drop":
                self.rfile.read(min(1000, self._length()))
                return self._hang_up()
            self.losing = failure == "lose"
            if failure == "race":
                repository = hub.repositories[parts["repo"]]
                repository.commit("main", {**hub.files(parts["repo"]), "theirs.txt": b"theirs"})
            elif not self.losing:
                self._body()
                return self._reply(int(failure), {"error": "requested by the test"})
        if name not in _PUBLIC and self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._body()
            return self._reply(401, {"error": "Invalid credentials"}, {"X-Error-Message": "Invalid credentials"})
        repo = parts.get("repo")
        if repo is not None and repo not in hub.repositories:
            self._body()
            return self._reply(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if repo is not None and hub.repositories[repo].gated:
            self._body()
            return self._reply(403, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
        return getattr(self, f"_{name}")(**parts)

    def _hang_up(self) -> None:
        self.losing = False
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(2)

    def _length(self) -> int:
        return int(self.headers.get("content-length") or 0)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(self._length())
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _reply(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        if self.losing:
            return self._hang_up()
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        return None

    # The calls

    def _whoami(self) -> None:
        self._reply(200, {"type": "user", "name": "USER", "auth": {"accessToken": {"role": "write"}}})

    def _validate(self) -> None:
        content = json.loads(self._body())["content"]
        good = content.startswith("---\n")
        self._reply(200 if good else 400, {"errors": [] if good else [{"message": "no metadata"}], "warnings": []})

    def _create(self) -> None:
        wanted = json.loads(self._body())
        repo = f"{wanted['organization']}/{wanted['name']}"
        if repo in self.hub.repositories:
            return self._reply(409, {"error": "You already created this model repo"})
        self.hub.add(repo, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        return self._reply(200, {"url": f"{self.hub.endpoint}/{repo}"})

    def _branch(self, repo: str, revision: str) -> None:
        start = json.loads(self._body()).get("startingPoint", "main")
        found = self.hub.repositories[repo]
        if revision in found.branches:
            return self._reply(409, {"error": "the branch exists"})
        found.branches[revision] = found.find(start) or ""
        return self._reply(200, {})

    def _commits(self, repo: str, revision: str) -> None:
        entry = {"authors": [], "date": "2025-01-01T00:00:00.000Z", "title": "", "message": ""}
        self._reply(200, [{"id": oid, **entry} for oid in reversed(self.hub.repositories[repo].commits)])

    def _info(self, repo: str, revision: str | None = None) -> None:
        found = self.hub.repositories[repo]
        oid = found.find(revision)
        if oid is None:
            return self._reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for path, content in found.commits[oid].items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": _git_id(content)}
            if _is_large(path):
                entry["blobId"] = "0" * 40
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}
            siblings.append(entry)
        repo = repo.removeprefix("datasets/")
        answer = {"id": repo, "modelId": repo, "sha": oid, "private": found.private, "siblings": siblings}
        return self._reply(200, answer)

    def _tree(self, repo: str, revision: str, path: str = "") -> None:
        found = self.hub.repositories[repo]
        oid = found.find(revision)
        if oid is None:
            return self._reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        inside = f"{path}/" if path else ""
        files = {name: content for name, content in found.commits[oid].items() if name.startswith(inside)}
        if not files:
            return self._reply(404, {"error": "no such folder"}, {"X-Error-Code": "EntryNotFound"})
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
        folders = {name for name in folders if name.startswith(inside) and name != "."}
        if self.query.get("recursive", ["true"]) == ["false"]:
            files = {name: content for name, content in files.items() if "/" not in name[len(inside) :]}
            folders = {name for name in folders if "/" not in name[len(inside) :]}
        return self._reply(200, [*_entries(files), *map(_folder_entry, sorted(folders))])

    def _paths(self, repo: str, revision: str) -> None:
        wanted = parse_qs(self._body().decode())["paths"]
        found = self.hub.repositories[repo]
        files = found.commits[found.find(revision) or ""]
        folders = [name for name in wanted if any(path.startswith(f"{name}/") for path in files)]
        listed = {name: files[name] for name in wanted if name in files}
        self._reply(200, [*_entries(listed), *map(_folder_entry, folders)])

    def _preupload(self, repo: str, revision: str) -> None:
        wanted = json.loads(self._body())["files"]
        modes = [
            {"path": f["path"], "uploadMode": "lfs" if _is_large(f["path"]) else "regular", "shouldIgnore": False}
            for f in wanted
        ]
        self._reply(200, {"files": modes})

    def _batch(self, repo: str) -> None:
        objects = []
        for wanted in json.loads(self._body())["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.large:
                entry["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}"}}
            objects.append(entry)
        self._reply(200, {"transfer": "basic", "objects": objects})

    def _upload(self, oid: str) -> None:
        content = self._body()
        if hashlib.sha256(content).hexdigest() != oid:
            return self._reply(400, {"error": "checksum"})
        self.hub.large[oid] = content
        return self._reply(200, {})

    def _commit(self, repo: str, revision: str) -> None:
        found = self.hub.repositories[repo]
        lines = [json.loads(line) for line in self._body().splitlines() if line]
        head = found.find(revision)
        if head is None:
            return self._reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if lines[0]["value"].get("parentCommit", head) != head:
            return self._reply(412, {"error": "A commit has happened since"})
        files = dict(found.commits[head])
        self.hub.committed[:] = [line["value"]["path"] for line in lines[1:]]
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            else:
                del files[value["path"]]
        proposed = "create_pr" in self.query
        branch = f"refs/pr/{len(found.requests) + 1}" if proposed else revision
        oid = found.commit(branch, files)
        answer: dict[str, Any] = {"success": True, "commitOid": oid}
        answer["commitUrl"] = f"{self.hub.endpoint}/{repo}/commit/{oid}"
        if proposed:
            found.requests.append(branch)
            answer["pullRequestUrl"] = f"{self.hub.endpoint}/{repo}/discussions/{len(found.requests)}"
        return self._reply(200, answer)

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        found = self.hub.repositories[repo]
        oid = found.find(revision)
        if oid is None:
            return self._reply(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        content = found.commits[oid].get(path)
        if content is None:
            return self._reply(404, {"error": "no file"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid})
        etag = hashlib.sha256(content).hexdigest() if _is_large(path) else _git_id(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": oid}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked is None:
            return self._reply(200, content, headers)
        part = content[int(asked[1]) : int(asked[2] or len(content)) + 1]
        headers["Content-Range"] = f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(content)}"
        return self._reply(206, part, headers)
