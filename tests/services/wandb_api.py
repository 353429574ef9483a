"""A stand-in of W&B's API, on this machine alone: it answers the requests that wandb sends online, and records them.

    python tests/services/wandb_api.py DIR [PORT]

It prints the variables that make wandb use it, and runs until it is stopped. ``curl ADDRESS`` shows the records; DIR
holds every request (requests.jsonl) and every file that was sent. It needs the standard library and PyYAML only.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

KEY = "0123456789" * 4
"""The one key that it accepts. Whoever sends another is refused, as W&B does."""
ENTITY = "team"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"

Plain = dict[str, Any]


@dataclass
class SentRun:
    """A run as W&B knows it. history: its rows by their line; exit_code: None until it has ended."""

    entity: str
    project: str
    name: str
    id: str
    display_name: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: list[str] = field(default_factory=list)
    sweep: str | None = None
    config: Plain = field(default_factory=dict)
    summary: Plain = field(default_factory=dict)
    history: dict[int, Plain] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    used_artifacts: list[str] = field(default_factory=list)
    exit_code: int | None = None

    def rows(self) -> list[Plain]:
        """Returns the rows of its history, in order."""
        return [self.history[line] for line in sorted(self.history)]

    @property
    def metrics(self) -> list[Plain]:
        """The definitions of its metrics, as wandb writes them into the config."""
        return [] if "_wandb" not in self.config else self.config["_wandb"]["value"].get("m", [])


@dataclass
class SentArtifact:
    """An artifact as W&B knows it. run: the name of the run that made it; files: those that its manifest lists."""

    id: str
    type: str
    name: str
    run: str | None
    digest: str
    client_id: str | None
    aliases: list[str]
    metadata: Plain
    files: list[str] = field(default_factory=list)
    state: str = "PENDING"


@dataclass
class SentView:
    """A workspace (``project-view``) or a report (``runs``)."""

    id: str
    type: str
    name: str
    project: str
    entity: str
    title: str
    description: str
    spec: Plain


@dataclass
class SentSweep:
    """A sweep. waiting: the parameters of the runs that its agents have not fetched; only a grid has some."""

    name: str
    project: str
    entity: str
    config: Plain
    waiting: list[Plain] = field(default_factory=list)


class Recorded:
    """All that was sent, and the answers to the operations of the API."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.requests: list[Plain] = []
        self.runs: dict[str, SentRun] = {}
        self.artifacts: dict[str, SentArtifact] = {}
        self.views: dict[str, SentView] = {}
        self.sweeps: dict[str, SentSweep] = {}
        self.projects: list[str] = []
        self._lock, self._numbers = threading.RLock(), itertools.count(1)

    def operations(self) -> list[str]:
        """Returns the names of the operations that were requested, in order."""
        return [request["operation"] for request in self.requests if "operation" in request]

    def file(self, *parts: str) -> bytes:
        """Returns the content of a file that was sent. parts: ``run NAME PATH`` or ``artifact ID PATH``."""
        return self.folder.joinpath("files", *parts).read_bytes()

    def describe(self) -> Plain:
        """Returns the records as plain data."""
        with self._lock:
            kinds = {
                "runs": self.runs, "artifacts": self.artifacts, "views": self.views, "sweeps": self.sweeps,
            }  # fmt: skip
            return {kind: [asdict(entry) for entry in entries.values()] for kind, entries in kinds.items()}

    def record(self, request: Plain) -> None:
        with self._lock:
            self.requests.append(request)
            with (self.folder / "requests.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(request) + "\n")

    def keep(self, path: str, content: bytes) -> None:
        """Writes a file that was sent; its path is that of the address it was given."""
        target = self.folder / "files" / path
        if ".." in Path(path).parts:
            raise ValueError(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        kind, owner, name = path.split("/", 2)
        with self._lock:
            if kind == "run" and name not in self.runs[owner].files:
                self.runs[owner].files.append(name)

    def stream(self, run: SentRun, message: Plain) -> None:
        """Takes one message of a run's stream of rows, summary and end."""
        with self._lock:
            for name, chunk in (message.get("files") or {}).items():
                rows = [json.loads(line) for line in chunk["content"]] if name in (HISTORY, SUMMARY) else []
                if name == HISTORY:
                    run.history |= {chunk["offset"] + i: row for i, row in enumerate(rows)}
                elif name == SUMMARY and rows:
                    run.summary = rows[-1]
            if message.get("complete"):
                run.exit_code = message.get("exitcode", 0)

    def answer(self, operation: str, given: Plain) -> Plain:
        """Returns the data of an operation. Raises KeyError for one that it does not know."""
        answers: dict[str, Callable[[Plain], Plain]] = {
            "Viewer": self._viewer,
            "GetViewer": self._viewer,
            "GetDefaultEntity": self._viewer,
            "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": []}},
            "ServerInfo": lambda _: {"serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None}},
            "OrgFeatureFlags": lambda _: {"organization": {"featureFlags": []}},
            "FetchOrgEntityFromEntity": lambda _: {"entity": {"organization": None}},
            "XXHashDigestsEnabled": lambda _: {"entity": {"xxhashDigestsEnabled": False}},
            "FetchArtifactDigestAlgorithm": lambda _: {"project": {"artifactType": None}},
            "RunResumeStatus": self._resume_status,
            "UpsertBucket": self._upsert_run,
            "CreateRunFiles": self._create_run_files,
            "MarkRunFilesUploaded": lambda _: {"markRunFilesUploaded": {"success": True}},
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": lambda given: self._manifest("createArtifactManifest", given["artifactID"]),
            "UpdateArtifactManifest": lambda given: self._manifest(
                "updateArtifactManifest", given["artifactManifestID"].removeprefix("manifest-")
            ),
            "CreateArtifactFiles": self._create_artifact_files,
            "CommitArtifact": self._commit_artifact,
            "UseArtifact": self._use_artifact,
            "ArtifactByID": self._find_artifact,
            "ArtifactType": lambda given: {"project": {"artifact": None}},
            "ClientIDMapping": self._client_id,
            "GetProjects": self._projects,
            "GetProject": lambda given: {"project": self._project(given["name"], given["entity"])},
            "ProjectInternalId": lambda given: {
                "project": {"id": "p", "internalId": "p"} if given["projectName"] in self.projects else None
            },
            "CreateProject": self._create_project,
            "UpsertModel": self._create_project,
            "upsertView": self._upsert_view,
            "UpsertView2": self._upsert_view,
            "View": self._find_view,
            "UpsertSweep": self._upsert_sweep,
            "Sweep": self._find_sweep,
            "SweepWithRuns": self._find_sweep,
            "GetSweepLegacy": self._find_sweep,
            "CreateAgent": lambda _: {"createAgent": {"agent": {"id": f"agent-{next(self._numbers)}"}}},
            "Heartbeat": self._heartbeat,
        }
        with self._lock:
            return answers[operation](given)

    def _viewer(self, _: Plain) -> Plain:
        user = {
            "id": "user", "name": "user", "username": "user", "entity": ENTITY, "email": "user@example.org",
            "admin": False, "flags": "{}", "deletedAt": None, "apiKeys": {"edges": []},
            "teams": {"edges": [{"node": {"name": ENTITY}}]},
        }  # fmt: skip
        return {"viewer": user}

    def _run(self, given: Plain) -> SentRun:
        """Returns a run by its name or id, which is new if none was sent."""
        name = given.get("name") or str(given["id"])
        known = self.runs.get(name) or next((run for run in self.runs.values() if run.id == name), None)
        if known is None:
            entity, project = given.get("entity") or ENTITY, given.get("project") or "uncategorized"
            known = SentRun(entity, project, name, f"id-{name}")
            self.runs[name] = known
            if project not in self.projects:
                self.projects.append(project)
        return known

    def _resume_status(self, given: Plain) -> Plain:
        run = self.runs.get(given["name"])
        if run is None:
            return {"model": {"id": "p", "name": given["project"], "entity": None, "bucket": None}}
        last = [json.dumps(run.rows()[-1])] if run.history else []
        bucket = {
            "id": run.id, "name": run.name, "summaryMetrics": json.dumps(run.summary), "displayName": run.display_name,
            "logLineCount": 0, "historyLineCount": max(run.history, default=-1) + 1, "eventsLineCount": 0,
            "historyTail": json.dumps(last), "eventsTail": "[]", "config": json.dumps(run.config), "tags": run.tags,
            "notes": None, "wandbConfig": json.dumps({"t": 1}),
        }  # fmt: skip
        entity = {"id": run.entity, "name": run.entity}
        return {"model": {"id": "p", "name": run.project, "entity": entity, "bucket": bucket}}

    def _upsert_run(self, given: Plain) -> Plain:
        before = len(self.runs)
        run = self._run(given)
        for name, attribute in (("displayName", "display_name"), ("groupName", "group"), ("jobType", "job_type"),
                                ("tags", "tags"), ("sweep", "sweep")):  # fmt: skip
            if given.get(name) is not None:
                setattr(run, attribute, given[name])
        if given.get("config"):
            run.config = json.loads(given["config"])
        if given.get("summaryMetrics"):
            run.summary = json.loads(given["summaryMetrics"])
        bucket = {
            "id": run.id, "name": run.name, "displayName": run.display_name, "description": None,
            "config": json.dumps(run.config), "sweepName": run.sweep, "historyLineCount": len(run.history),
            "project": {"id": "p", "name": run.project, "entity": {"id": run.entity, "name": run.entity}},
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": len(self.runs) > before}}

    def _upload_url(self, *parts: str) -> str:
        return f"{self.address}/storage/{quote('/'.join(parts))}"

    def _create_run_files(self, given: Plain) -> Plain:
        files = [{"name": name, "uploadUrl": self._upload_url("run", given["run"], name)} for name in given["files"]]
        created = {"runID": self.runs[given["run"]].id, "uploadHeaders": [], "files": files}
        return {"createRunFiles": created}

    def _create_artifact(self, given: Plain) -> Plain:
        wanted = given["input"]
        name = (wanted.get("artifactCollectionNames") or [wanted.get("artifactCollectionName")])[0]
        same = [
            artifact for artifact in self.artifacts.values()
            if (artifact.name, artifact.type, artifact.digest) == (name, wanted["artifactTypeName"], wanted["digest"])
        ]  # fmt: skip
        if same:  # an unchanged artifact is no new version
            artifact = same[0]
        else:
            artifact = SentArtifact(
                f"artifact-{next(self._numbers)}", wanted["artifactTypeName"], name, wanted.get("runName"),
                wanted["digest"], wanted.get("clientID"), [alias["alias"] for alias in wanted.get("aliases") or []],
                json.loads(wanted.get("metadata") or "{}"),
            )  # fmt: skip
            self.artifacts[artifact.id] = artifact
        sequence = {"latestArtifact": {"id": artifact.id} if artifact.state == "COMMITTED" else None}
        return {
            "createArtifact": {
                "artifact": {"id": artifact.id, "state": artifact.state, "artifactSequence": sequence},
            }
        }

    def _manifest(self, field_name: str, artifact: str) -> Plain:
        url = self._upload_url("artifact", artifact, "wandb_manifest.json")
        file = {"id": f"file-{artifact}", "uploadUrl": url, "uploadHeaders": []}
        return {field_name: {"artifactManifest": {"id": f"manifest-{artifact}", "file": file}}}

    def _create_artifact_files(self, given: Plain) -> Plain:
        nodes: list[Plain] = []
        for wanted in given["input"]["artifactFiles"]:
            name = wanted["name"]
            url = self._upload_url("artifact", wanted["artifactID"], name)
            nodes.append({
                "storagePath": f"wandb_artifacts/{wanted['artifactID']}/{name}", "uploadUrl": url, "uploadHeaders": [],
                "uploadMultipartUrls": None, "artifact": {"id": wanted["artifactID"]},
            })  # fmt: skip
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _commit_artifact(self, given: Plain) -> Plain:
        artifact = self.artifacts[given["artifactID"]]
        manifest = json.loads(self.file("artifact", artifact.id, "wandb_manifest.json"))
        artifact.files, artifact.state = sorted(manifest["contents"]), "COMMITTED"
        return {"commitArtifact": {"artifact": {"id": artifact.id, "digest": artifact.digest}}}

    def _use_artifact(self, given: Plain) -> Plain:
        wanted = given["input"]
        self.runs[wanted["runName"]].used_artifacts.append(wanted["artifactID"])
        return {"useArtifact": {"artifact": {"id": wanted["artifactID"]}}}

    def _find_artifact(self, given: Plain) -> Plain:
        artifact = self.artifacts[given["id"]]
        project = {"id": "p", "internalId": "p", "name": "project", "entity": {"name": ENTITY}}
        sequence = {"__typename": "ArtifactSequence", "name": artifact.name, "project": project}
        shown = {
            "__typename": "Artifact", "id": artifact.id, "artifactSequence": sequence, "versionIndex": 0,
            "artifactType": {"name": artifact.type}, "description": None, "metadata": json.dumps(artifact.metadata),
            "ttlDurationSeconds": -2, "ttlIsInherited": True, "tags": [], "historyStep": None, "state": artifact.state,
            "size": 0, "digest": artifact.digest, "commitHash": None, "fileCount": len(artifact.files),
            "createdAt": "2026-01-01T00:00:00Z", "updatedAt": None, "aliases": [],
        }  # fmt: skip
        return {"artifact": shown}

    def _client_id(self, given: Plain) -> Plain:
        ids = [artifact.id for artifact in self.artifacts.values() if artifact.client_id == given["clientID"]]
        return {"clientIDMapping": {"serverID": ids[0]} if ids else None}

    def _project(self, name: str, entity: str | None) -> Plain | None:
        if name not in self.projects:
            return None
        return {
            "__typename": "Project", "id": "p", "internalId": "p", "name": name, "entityName": entity or ENTITY,
            "createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False, "user": None,
        }  # fmt: skip

    def _projects(self, given: Plain) -> Plain:
        edges = [{"node": self._project(name, given.get("entity"))} for name in self.projects]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": edges}}

    def _create_project(self, given: Plain) -> Plain:
        wanted = given.get("input") or given
        name = wanted.get("name") or wanted["project"]
        self.projects.append(name)
        project = {
            "id": "p", "name": name, "entityName": wanted.get("entityName") or ENTITY, "description": None,
            "access": "PRIVATE", "views": "{}",
        }  # fmt: skip
        made = {"project": project, "model": project, "inserted": True}
        return {"result": made, "upsertModel": made}

    def _upsert_view(self, given: Plain) -> Plain:
        known = self.views.get(given.get("id") or "")
        view = SentView(
            known.id if known else f"view-{next(self._numbers)}", given["type"], given["name"], given["projectName"],
            given.get("entityName") or ENTITY, given["displayName"], given.get("description") or "",
            json.loads(given["spec"]),
        )  # fmt: skip
        self.views[view.id] = view
        shown = {
            "id": view.id, "type": view.type, "name": view.name, "displayName": view.title,
            "description": view.description, "project": {"id": "p", "name": view.project, "entityName": view.entity},
            "spec": given["spec"], "updatedAt": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        return {"upsertView": {"view": shown, "inserted": known is None}}

    def _find_view(self, given: Plain) -> Plain:
        views = [view for view in self.views.values() if view.name == given["viewName"]]
        nodes = [{"id": view.id, "displayName": view.title, "spec": json.dumps(view.spec)} for view in views]
        return {"project": {"allViews": {"edges": [{"node": node} for node in nodes]}}}

    def _upsert_sweep(self, given: Plain) -> Plain:
        import yaml

        name = given.get("id") or f"sweep{next(self._numbers):03}"
        config = yaml.safe_load(given.get("config") or "{}")
        project, entity = given.get("projectName") or "uncategorized", given.get("entityName") or ENTITY
        sweep = SentSweep(name, project, entity, config)
        if config.get("method") == "grid":
            values = {key: entry.get("values", [entry.get("value")]) for key, entry in config["parameters"].items()}
            combinations = itertools.product(*values.values())
            sweep.waiting = [dict(zip(values, combination, strict=True)) for combination in combinations]
        self.sweeps[name] = sweep
        shown = {"id": name, "name": name, "state": "PENDING",
                 "project": {"id": "p", "name": project, "entity": {"id": entity, "name": entity}}}  # fmt: skip
        return {"upsertSweep": {"sweep": shown, "configValidationWarnings": []}}

    def _find_sweep(self, given: Plain) -> Plain:
        import yaml

        sweep = self.sweeps.get(given.get("sweep") or given.get("name") or "")
        if sweep is None:
            return {"project": {"sweep": None}}
        shown = {
            "id": sweep.name, "name": sweep.name, "method": sweep.config.get("method"), "state": "RUNNING",
            "description": None, "config": yaml.safe_dump(sweep.config), "createdAt": "2026-01-01T00:00:00Z",
            "heartbeatAt": None, "updatedAt": None, "earlyStopJobRunning": False, "controller": None,
            "scheduler": None, "displayName": sweep.name, "runCount": 0, "bestLoss": None, "runs": {"edges": []},
        }  # fmt: skip
        return {"project": {"sweep": shown}}

    def _heartbeat(self, given: Plain) -> Plain:
        """Gives an agent that runs nothing the next parameters of the newest sweep, or tells it to end."""
        states = given.get("runState") or "{}"
        busy = bool(json.loads(states) if isinstance(states, str) else states)
        commands: list[Plain] = []
        sweep = [*self.sweeps.values()][-1]
        if not busy and sweep.waiting:
            values = {name: {"value": value} for name, value in sweep.waiting.pop(0).items()}
            commands = [{"type": "run", "run_id": f"trial{next(self._numbers):03}", "args": values}]
        elif not busy:
            commands = [{"type": "exit"}]
        return {"agentHeartbeat": {"agent": {"id": given["id"]}, "commands": json.dumps(commands)}}


def _handler(recorded: Recorded) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond(200, recorded.describe())

        def do_PUT(self) -> None:
            body = self._body()
            recorded.record({"path": self.path, "bytes": len(body)})
            recorded.keep(unquote(self.path.removeprefix("/storage/")), body)
            self._respond(200, {})

        def do_POST(self) -> None:
            body = self._body()
            is_file_stream = self.path.endswith("/file_stream")
            given = json.loads(body) if is_file_stream or self.path == "/graphql" else {}
            if not self._is_known():
                recorded.record({"path": self.path, "refused": True})
                self._respond(401, {"errors": [{"message": "the key is not known"}]})
            elif is_file_stream:
                recorded.record({"path": self.path, "message": given})
                recorded.stream(recorded.runs[unquote(self.path.split("/")[-2])], given)
                self._respond(200, {"exitcode": None, "limits": {}})
            elif self.path == "/graphql":
                self._respond(200, self._answer(given))
            else:  # wandb's telemetry
                recorded.record({"path": self.path, "bytes": len(body)})
                self._respond(404, {})

        def _answer(self, given: Plain) -> Plain:
            match = re.search(r"\b(?:query|mutation)\s+(\w+)", given["query"])
            operation = match[1] if match else ""
            variables = given.get("variables") or {}
            recorded.record({"operation": operation, "variables": variables})
            try:
                return {"data": recorded.answer(operation, variables)}
            except KeyError as error:
                return {"errors": [{"message": f"the stand-in has no answer to {operation}: {error}"}]}

        def _is_known(self) -> bool:
            kind, _, sent = self.headers.get("Authorization", "").partition(" ")
            return (base64.b64decode(sent).decode() if kind == "Basic" else f"api:{sent}") == f"api:{KEY}"

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b"".join(iter(self._chunk, b""))
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _chunk(self) -> bytes:
            content = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return content

        def _respond(self, status: int, answer: Plain) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *request: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # wandb drops the connections that it does not need
            super().handle_error(*request)


@contextmanager
def wandb_api(folder: Path, port: int = 0) -> Iterator[Recorded]:
    """Serves the API until the end of the block, on a free port unless one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    recorded = Recorded(folder)
    server = _Server(("127.0.0.1", port), _handler(recorded))
    recorded.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield recorded
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with wandb_api(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 0) as recorded:
        print(f"export WANDB_BASE_URL={recorded.address} WANDB_API_KEY={KEY}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"the requests are in {recorded.folder}")


if __name__ == "__main__":
    main()
