"""The manager's REST interface as plain objects: regions are made, listed, grown and destroyed, nodes listed.

    from cxloe.manager import Manager

    manager = Manager("https://10.0.0.1:7440", ca="ca.pem")  # the token is that of CXLOE_TOKEN
    region = manager.create("scratch", "16G", owner="cn0")
    manager.destroy("scratch")

Only the standard library is used. A call opens a connection of its own, so that threads may share a ``Manager``.
"""

from __future__ import annotations

import http.client
import json
import os
import socket as sockets
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from ._errors import ManagerError

__all__ = ["ComputeNode", "Leg", "Manager", "MemoryNode", "Region", "URL_DEFAULT"]

#: URL of a manager on this machine.
URL_DEFAULT = "https://127.0.0.1:7440"
#: Seconds for an answer, beyond the time that the manager is asked to wait.
ANSWER_TIMEOUT = 10.0
#: Longest answer in bytes.
ANSWER_MAX = 256 << 20
#: Redirections of one request to the manager that leads.
REDIRECTS_MAX = 4
#: Seconds for which the manager waits for memory nodes, unless a call says otherwise.
WAIT_DEFAULT = 10.0


@dataclass(frozen=True)
class Leg:
    """The part of a region on one memory node."""

    memory_node: str
    #: Index of the leg's decoder, and its position in the decoder's interleave set.
    decoder: int
    position: int
    #: Number of the copy that the leg belongs to: 0 or 1.
    copy: int
    bytes: int
    #: ``mapped``, ``mapping``, ``stale``, …
    state: str


@dataclass(frozen=True)
class Region:
    """A region in the manager's record."""

    name: str
    #: CN id of the compute node that may use the region.
    owner: str
    #: Usable bytes.
    size: int
    #: ``active``, ``creating``, ``degraded``, ``lost``, ``draining``, …
    state: str
    #: Interleave ways, and the interleave granularity in bytes.
    ways: int
    granularity: int
    #: ``none`` or ``mirror``.
    protect: str
    #: User on the compute node that may use the region; None: every user of that node's agent.
    uid: int | None
    created_ms: int
    legs: tuple[Leg, ...]
    #: Whether the content never changes again.
    sealed: bool
    #: Name of the region that this one is a clone or a snapshot of.
    origin: str | None
    #: Labels that people have given to the region.
    labels: Mapping[str, str]
    #: The whole answer, with what this class does not name.
    record: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class MemoryNode:
    """A memory node in the manager's record."""

    name: str
    macs: tuple[str, ...]
    #: ``reachable`` or ``unreachable``.
    health: str
    pool_bytes: int
    #: Bytes of the pool that belong to no region.
    free_bytes: int
    #: Size of an extent, the unit of allocation.
    extent_bytes: int
    rack: str | None
    #: Whether the parts of regions on the node move to other nodes.
    draining: bool
    record: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class ComputeNode:
    """A compute node in the manager's record."""

    #: Source address of the node's frames, which is its identity.
    cn_id: str
    #: None until the node registers with a name.
    name: str | None
    #: ``reachable``, ``unreachable`` or ``unregistered``.
    health: str
    #: Limit of the total size of the node's regions in bytes.
    quota: int | None
    #: Whether the node is held in reset: it attaches nothing until it is released.
    held: bool
    record: Mapping[str, Any] = field(repr=False, compare=False)


def _region(record: Mapping[str, Any]) -> Region:
    legs = tuple(
        Leg(
            memory_node=leg["memory_node"],
            decoder=leg["decoder"],
            position=leg["position"],
            copy=leg.get("copy", 0),
            bytes=leg["bytes"],
            state=leg["state"],
        )
        for leg in record["legs"]
    )
    return Region(
        name=record["name"],
        owner=record["owner"],
        size=record["size"],
        state=record["state"],
        ways=record["ways"],
        granularity=record["granularity"],
        protect=record.get("protect", "none"),
        uid=record.get("uid"),
        created_ms=record["created_ms"],
        legs=legs,
        sealed=record.get("sealed", False),
        origin=record["origin"]["region"] if record.get("origin") else None,
        labels=record.get("labels", {}),
        record=record,
    )


def _memory_node(record: Mapping[str, Any]) -> MemoryNode:
    return MemoryNode(
        name=record["name"],
        macs=tuple(record["macs"]),
        health=record["health"],
        pool_bytes=record["pool_bytes"],
        free_bytes=record["free_bytes"],
        extent_bytes=record["extent_bytes"],
        rack=record.get("rack"),
        draining=record.get("draining", False),
        record=record,
    )


def _compute_node(record: Mapping[str, Any]) -> ComputeNode:
    return ComputeNode(
        cn_id=record["cn_id"],
        name=record.get("name"),
        health=record["health"],
        quota=record.get("quota"),
        held=record.get("held", False),
        record=record,
    )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Manager:
    """A manager, or several that share a store, of which one leads.

    ``url``: ``https://HOST:PORT``, ``unix:/path/to/socket``, or ``http://HOST:PORT`` for a manager without access
    control; several, separated by commas, are managers that share a store.
    ``token``: the token to send, over TLS and Unix sockets only; None: that of the variable ``CXLOE_TOKEN``, if it is set.
    ``ca``: the file with the manager's authority (``ca.pem``), which TLS requires.

    Failed calls raise ``cxloe.ManagerError``. A request is sent again only if it cannot be carried out twice.
    """

    def __init__(
        self,
        url: str = URL_DEFAULT,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = url
        self._token = os.environ.get("CXLOE_TOKEN") if token is None else token
        self._tls: ssl.SSLContext | None = None
        self._urls = [self._checked(one) for one in url.split(",")]
        self._current = 0
        if ca is not None:
            self._tls = ssl.create_default_context(cafile=os.fspath(ca))
        elif any(one.startswith("https:") for one in self._urls):
            raise self._bad_url(url, "TLS requires the manager's authority: name its file with ca=")

    def __repr__(self) -> str:
        return f"<cxloe.manager.Manager at {self.url}>"

    def regions(self, labels: str = "") -> list[Region]:
        """Every region, in any state, ordered by name.

        ``labels``: only regions whose labels meet these conditions: ``key=value``, ``key!=value``, ``key`` or ``!key``,
        separated by commas.
        """
        asked = "list regions"
        path = "/v1/regions" + (f"?labels={quote(labels)}" if labels else "")
        return [self._read(asked, _region, one) for one in self._ask("GET", path, asked)]

    def region(self, name: str, owner_wait: float = 0.0) -> Region:
        """The region ``name``; with ``owner_wait`` the manager waits up to so many seconds until the owner's agent has
        received the present state of its regions."""
        path = f"/v1/regions/{_name(name)}?owner_wait_ms={_ms(owner_wait)}"
        return self._one_region("GET", path, f"show region {name}", None, owner_wait)

    def create(
        self,
        name: str | None,
        size: int | str,
        owner: str,
        *,
        ways: int = 1,
        granularity: int = 4096,
        on: Iterable[str] = (),
        protect: str = "none",
        uid: int | None = None,
        labels: Mapping[str, str] | None = None,
        wait: float = WAIT_DEFAULT,
    ) -> Region:
        """Create a region, and wait up to ``wait`` seconds for its memory nodes. A region that is ``creating`` when that
        time ends becomes ``active`` without further calls.

        ``name``: None: the manager chooses ``region0``, ``region1`` and so on.
        ``size``: bytes, or a text as ``"16G"``; a multiple of the memory nodes' extents.
        ``owner``: name or CN id of the compute node that will use the region.
        ``on``: the memory nodes to place the region on; none: those with the most free memory.
        ``protect``: ``none`` or ``mirror``.
        ``uid``: the user on the compute node that may use the region; None: every user of that node's agent.
        ``labels``: keys and values by which ``regions`` finds it.
        """
        body: dict[str, Any] = {
            "size": size,
            "owner": owner,
            "ways": ways,
            "granularity": granularity,
            "on": list(on),
            "protect": protect,
            "labels": dict(labels or {}),
            "wait_ms": _ms(wait),
        }
        body.update({key: value for key, value in (("name", name), ("uid", uid)) if value is not None})
        called = f"{name} " if name is not None else ""
        asked = f"create region {called}of {_size(size)} for {owner}"
        return self._one_region("POST", "/v1/regions", asked, body, wait)

    def label(self, name: str, set: Mapping[str, str] | None = None, *, remove: Iterable[str] = ()) -> Region:
        """Add labels to a region or change their values, and remove those of the keys in ``remove``."""
        body = {"set": dict(set or {}), "remove": list(remove)}
        return self._one_region("POST", f"/v1/regions/{_name(name)}/labels", f"label region {name}", body, 0.0)

    def grow(
        self, name: str, size: int | str, *, on: Iterable[str] = (), wait: float = WAIT_DEFAULT
    ) -> Region:
        """Enlarge a region to ``size`` in all, while it is used. A region whose ``size`` is less than that is still
        growing."""
        body = {"size": size, "on": list(on), "wait_ms": _ms(wait)}
        asked = f"grow region {name} to {_size(size)}"
        return self._one_region("POST", f"/v1/regions/{_name(name)}/grow", asked, body, wait)

    def destroy(self, name: str, *, force: bool = False, wait: float = WAIT_DEFAULT) -> Region | None:
        """Destroy a region. Returns None once its memory is zeroed and free, or else the region, which is draining.

        ``force``: destroy the region even if its owner's agent is running and may be using it.
        """
        path = f"/v1/regions/{_name(name)}?force={'true' if force else 'false'}&wait_ms={_ms(wait)}"
        asked = f"destroy region {name}"
        left = self._ask("DELETE", path, asked, None, wait)
        return None if left is None else self._read(asked, _region, left)

    def clone(
        self,
        name: str,
        new: str,
        *,
        owner: str | None = None,
        uid: int | None = None,
        force: bool = False,
        wait: float = WAIT_DEFAULT,
    ) -> Region:
        """Make the region ``new``, which begins with the content that ``name`` has now. Memory nodes copy it while both are
        used. The owner of a region in use writes back and releases it first, and then has it again.

        ``owner``, ``uid``: None: those of ``name``.
        ``force``: take what the memory nodes have although the owner's agent is unreachable.
        """
        return self._clone(name, new, False, owner, uid, force, wait)

    def snapshot(
        self,
        name: str,
        new: str,
        *,
        owner: str | None = None,
        uid: int | None = None,
        force: bool = False,
        wait: float = WAIT_DEFAULT,
    ) -> Region:
        """Make the sealed region ``new`` with the content that ``name`` has now, as ``clone`` does."""
        return self._clone(name, new, True, owner, uid, force, wait)

    def _clone(
        self, name: str, new: str, sealed: bool, owner: str | None, uid: int | None, force: bool, wait: float
    ) -> Region:
        body: dict[str, Any] = {"name": new, "sealed": sealed, "force": force, "wait_ms": _ms(wait)}
        body.update({key: value for key, value in (("owner", owner), ("uid", uid)) if value is not None})
        asked = f"clone region {name} as {new}"
        return self._one_region("POST", f"/v1/regions/{_name(name)}/clone", asked, body, wait)

    def move(self, name: str, to: str, *, force: bool = False, wait: float = WAIT_DEFAULT) -> Region:
        """Give a region to another compute node with its content; nothing is copied."""
        body = {"to": to, "force": force, "wait_ms": _ms(wait)}
        return self._one_region("POST", f"/v1/regions/{_name(name)}/move", f"move region {name} to {to}", body, wait)

    def seal(self, name: str, *, force: bool = False, wait: float = WAIT_DEFAULT) -> Region:
        """Make a region read-only for good."""
        body = {"force": force, "wait_ms": _ms(wait)}
        return self._one_region("POST", f"/v1/regions/{_name(name)}/seal", f"seal region {name}", body, wait)

    def share(
        self, name: str, reader: str, *, uid: int | None = None, end: bool = False, wait: float = WAIT_DEFAULT
    ) -> Region:
        """Let a further compute node read a sealed region, or, with ``end``, no longer."""
        body: dict[str, Any] = {"with": reader, "end": end, "wait_ms": _ms(wait)}
        if uid is not None:
            body["uid"] = uid
        asked = f"share region {name} {'no longer ' if end else ''}with {reader}"
        return self._one_region("POST", f"/v1/regions/{_name(name)}/share", asked, body, wait)

    def memory_nodes(self) -> list[MemoryNode]:
        """Every memory node."""
        asked = "list memory nodes"
        nodes = self._ask("GET", "/v1/memory-nodes", asked)
        return [self._read(asked, _memory_node, node) for node in nodes]

    def compute_nodes(self) -> list[ComputeNode]:
        """Every compute node."""
        asked = "list compute nodes"
        nodes = self._ask("GET", "/v1/compute-nodes", asked)
        return [self._read(asked, _compute_node, node) for node in nodes]

    def health(self) -> Mapping[str, Any]:
        """The manager's health, who leads, and how many nodes and regions there are."""
        return self._ask("GET", "/v1/health", "show its health")

    def _one_region(self, method: str, path: str, asked: str, body: Any, wait: float) -> Region:
        return self._read(asked, _region, self._ask(method, path, asked, body, wait))

    def _read(self, asked: str, read: Any, record: Any) -> Any:
        """The object of a record, whose fields an answer of another version might lack."""
        try:
            return read(record)
        except (KeyError, TypeError, AttributeError) as error:
            raise self._protocol(asked, f"{type(error).__name__}: {error}") from error

    def _ask(self, method: str, path: str, asked: str, body: Any = None, wait: float = 0.0) -> Any:
        """The JSON of a successful answer; None for an answer without one."""
        headers = {} if method == "GET" else {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        places = self._urls[self._current :] + self._urls[: self._current]
        reasons: list[str] = []
        redirects = 0
        while places:
            url = places.pop(0)
            connection = self._connection(url, ANSWER_TIMEOUT + wait)
            try:
                connection.connect()
            except ssl.SSLError as error:
                if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
                    raise ManagerError(
                        f"the manager at {url}, asked to {asked}, uses no TLS: if it was started with --insecure, "
                        "write http:// instead of https://",
                        "plain",
                    ) from error
                reasons.append(_reason(url, error, self._urls))
                continue
            except OSError as error:
                reasons.append(_reason(url, error, self._urls))
                continue
            try:
                answer, text = self._exchange(connection, method, path, content, headers, url)
            except (OSError, http.client.HTTPException) as error:
                reason = _reason(url, error, self._urls)
                if method != "GET":
                    raise ManagerError(
                        f"the manager at {url} was asked to {asked}, and its answer did not come ({reason}): it may "
                        "have been done; look whether it was before you ask again",
                        "unanswered",
                    ) from error
                reasons.append(reason)
                continue
            finally:
                connection.close()
            location = answer.getheader("Location", "")
            if answer.status == 307 and location.endswith(path) and redirects < REDIRECTS_MAX:
                redirects += 1
                places.insert(0, self._checked(location.removesuffix(path)))
                continue
            if url in self._urls:
                self._current = self._urls.index(url)
            return self._answered(url, asked, answer.status, text)
        raise ManagerError(
            f"manager unreachable at {self.url}, asked to {asked}: {'; '.join(reasons)}; is `gmm serve` running there?",
            "unreachable",
        )

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str],
        url: str,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        headers = dict(headers)
        # A token is not sent where others can read it.
        if self._token and not url.startswith("http:"):
            headers["Authorization"] = f"Bearer {self._token}"
        connection.request(method, path, body=content, headers=headers)
        answer = connection.getresponse()
        text = answer.read(ANSWER_MAX + 1)
        if len(text) > ANSWER_MAX:
            raise http.client.HTTPException(f"an answer of more than {ANSWER_MAX} bytes")
        return answer, text

    def _answered(self, url: str, asked: str, status: int, text: bytes) -> Any:
        try:
            answer = json.loads(text) if text else None
        except ValueError as error:
            raise self._protocol(asked, f"status {status} with what is not JSON") from error
        if 200 <= status < 300:
            return answer
        if not isinstance(answer, dict) or not {"error", "code", "hint"} <= answer.keys():
            raise self._protocol(asked, f"status {status} without an error body")
        words = f"manager at {url} refused to {asked}: {answer['error']}; {answer['hint']}"
        raise ManagerError(words, str(answer["code"]), status)

    def _connection(self, url: str, timeout: float) -> http.client.HTTPConnection:
        if url.startswith("unix:"):
            return _UnixConnection(url.removeprefix("unix:"), timeout)
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout)

    def _checked(self, url: str) -> str:
        """The URL without a slash at its end, if it is one of a manager."""
        url = url.strip()
        if url.startswith("unix:"):
            if url == "unix:":
                raise self._bad_url(url, "the path of the socket is missing")
            return url
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise self._bad_url(url, str(error)) from error
        if not known:
            raise self._bad_url(url, "it does not start with https://HOST")
        return url.rstrip("/")

    @staticmethod
    def _bad_url(url: str, reason: str) -> ManagerError:
        return ManagerError(
            f'"{url}" is not the URL of a manager ({reason}); write https://HOST:PORT or unix:/path/to/socket, several '
            "separated by commas",
            "bad_url",
        )

    def _protocol(self, asked: str, reason: str) -> ManagerError:
        return ManagerError(
            f"{self.url} answered a request to {asked} with what no manager of this version sends ({reason}); check the "
            "URL and both versions",
            "protocol",
        )


def _name(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


def _ms(seconds: float) -> int:
    if not 0 <= seconds < 1e9:
        raise ValueError(f"a wait of {seconds} seconds")
    return round(seconds * 1000)


def _size(size: int | str) -> str:
    """A size as the command line writes it: in the largest binary unit that divides it."""
    if isinstance(size, str):
        return size
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def _reason(url: str, error: Exception, urls: list[str]) -> str:
    reason = str(error) or type(error).__name__
    return f"{url}: {reason}" if len(urls) > 1 else reason
