"""The manager's REST as plain objects."""

import dataclasses
import socket
import threading

import cxloe
import pytest
from conftest import REGION, eventually
from cxloe.manager import Manager


def test_regions_are_made_grown_and_destroyed(manager, owner):
    made = manager.create("of-python", "2M", owner, uid=0)
    assert (made.name, made.size, made.state, made.ways, made.protect, made.uid) == (
        "of-python",
        2 << 20,
        "active",
        1,
        "none",
        0,
    )
    assert [(leg.memory_node, leg.bytes, leg.state) for leg in made.legs] == [("mn0", 2 << 20, "mapped")]
    assert manager.region("of-python", owner_wait=10) == made
    assert "of-python" in [region.name for region in manager.regions()]
    assert made.record["unmapped"] == "error"
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.size = 1

    grown = manager.grow("of-python", 4 << 20)
    assert eventually("it has grown", lambda: manager.region("of-python").size == 4 << 20), grown

    manager.destroy("of-python", force=True)
    assert eventually("it is destroyed", lambda: "of-python" not in [region.name for region in manager.regions()])


def test_regions_are_found_by_their_labels(manager, owner):
    made = manager.create("labelled", "2M", owner, labels={"use": "training", "team": "a"})
    assert made.labels == {"use": "training", "team": "a"}
    changed = manager.label("labelled", {"team": "b/c", "empty": ""}, remove=["use"])
    assert changed.labels == {"team": "b/c", "empty": ""}
    assert [one.name for one in manager.regions("team=b/c,!use")] == ["labelled"]
    assert manager.regions("team!=b/c,empty") == []
    for wrong in ({"a b": ""}, {"a": "b c"}):
        with pytest.raises(cxloe.ManagerError) as failed:
            manager.label("labelled", wrong)
        assert failed.value.kind == "bad_request"
    manager.destroy("labelled", force=True, wait=30)


def test_snapshots_and_clones(manager, owner):
    manager.create("source", "2M", owner, uid=0)
    kept = manager.snapshot("source", "kept", wait=30)
    assert (kept.state, kept.sealed, kept.origin, kept.size, kept.uid) == ("active", True, "source", 2 << 20, 0)
    again = manager.clone("kept", "again", owner=owner, wait=30)
    assert (again.state, again.sealed, again.origin) == ("active", False, "kept")
    assert manager.seal("kept").sealed
    with pytest.raises(cxloe.ManagerError, match="is its owner"):
        manager.share("kept", owner)
    with pytest.raises(cxloe.ManagerError, match="only a sealed region can be shared"):
        manager.share("again", owner)
    assert manager.move("again", owner).owner == again.owner
    with pytest.raises(cxloe.ManagerError, match="already"):
        manager.clone("source", "kept")
    for name in ("source", "kept", "again"):
        manager.destroy(name, force=True, wait=30)


def test_nodes_and_health(manager, owner, region):
    [memory] = manager.memory_nodes()
    assert (memory.name, memory.health, memory.draining) == ("mn0", "reachable", False)
    assert memory.pool_bytes >= memory.free_bytes + REGION
    assert memory.pool_bytes % memory.extent_bytes == 0
    [compute] = manager.compute_nodes()
    assert (compute.name, compute.health, compute.held) == (owner, "reachable", False)
    assert manager.region(region.name).owner == compute.cn_id
    health = manager.health()
    assert health["status"] == "ok" and health["regions"] >= 1


def test_refusals_have_the_words_of_the_command_line(manager, owner, region):
    with pytest.raises(cxloe.ManagerError) as failed:
        manager.create(region.name, "2M", owner)
    assert (failed.value.kind, failed.value.code) == ("name_in_use", 409)
    asked = f"create region {region.name} of 2M for {owner}"
    assert str(failed.value).startswith(f"manager at {manager.url} refused to {asked}: ")
    with pytest.raises(cxloe.ManagerError) as failed:
        manager.create("too-large", 1 << 50, owner)
    assert (failed.value.kind, failed.value.code) == ("no_space", 507)
    assert "refused to create region too-large of 1024TiB for" in str(failed.value)
    with pytest.raises(cxloe.ManagerError) as failed:
        manager.region("nothing")
    assert (failed.value.kind, failed.value.code) == ("not_found", 404)
    with pytest.raises(cxloe.ManagerError) as failed:
        # A name is a part of a path, whatever is in it.
        manager.destroy("../health")
    assert failed.value.code in (400, 404)


def test_urls(tmp_path):
    for url in ("", "ftp://host", "unix:", "https://", "http://host:port"):
        with pytest.raises(cxloe.ManagerError, match="is not the URL of a manager") as failed:
            Manager(url)
        assert failed.value.kind == "bad_url"
    with pytest.raises(cxloe.ManagerError, match="name its file with ca="):
        Manager("https://127.0.0.1:7440")
    words = "manager unreachable at .*asked to list regions.*is `gmm serve` running"
    with pytest.raises(cxloe.ManagerError, match=words) as failed:
        Manager(f"unix:{tmp_path}/gmm.sock").regions()
    assert (failed.value.kind, failed.value.code) == ("unreachable", None)


def test_the_next_of_several_managers_is_asked(manager, tmp_path, region):
    several = Manager(f"unix:{tmp_path}/nobody.sock,{manager.url}")
    assert region.name in [one.name for one in several.regions()]


def served_once(answer):
    """A peer that reads one request and answers it with these bytes; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener, listener.accept()[0] as peer:
            peer.recv(65536)
            peer.sendall(answer)

    threading.Thread(target=serve).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_peers_that_are_no_managers(tmp_path):
    def http(body, status="200 OK", more=""):
        return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n{body}".encode()

    for answer in (http("plain text"), http('[{"name":"r"}]'), http('{"odd":1}', "500 Wrong")):
        with pytest.raises(cxloe.ManagerError, match="what no manager of this version sends") as failed:
            Manager(served_once(answer)).regions()
        assert failed.value.kind == "protocol"
    with pytest.raises(cxloe.ManagerError, match="it may have been done") as failed:
        Manager(served_once(b"")).create("r", "2M", "cn0")
    assert failed.value.kind == "unanswered"
    # A manager that does not lead names the one that does.
    leader = served_once(http("[]"))
    follower = served_once(http("", "307 Temporary Redirect", f"Location: {leader}/v1/regions\r\n"))
    assert Manager(follower).regions() == []
