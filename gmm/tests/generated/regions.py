"""Makes, lists and destroys a region with a generated client.

Arguments: the manager's URL, the file with its authority, a token, and the folder that contains the client.
"""

import ssl
import sys

url, authority, token, folder = sys.argv[1:]
sys.path.insert(0, folder)

from client import AuthenticatedClient  # noqa: E402
from client.api.default import create_region, destroy_region, list_events, list_memory_nodes, list_regions  # noqa: E402
from client.models import CreateRegion, ErrorBody, ErrorCode, Protection, RegionState  # noqa: E402


def answered(response, *statuses):
    """The body of an answer with one of these statuses."""
    assert int(response.status_code) in statuses, (response.status_code, response.content)
    return response.parsed


manager = AuthenticatedClient(
    base_url=url,
    token=token,
    verify_ssl=ssl.create_default_context(cafile=authority),
    # Requests that change something need it, even without a body.
    headers={"Content-Type": "application/json"},
    raise_on_unexpected_status=True,
)
with manager:
    assert answered(list_regions.sync_detailed(client=manager), 200) == []
    [node] = answered(list_memory_nodes.sync_detailed(client=manager), 200)
    assert (node.name, node.pool_bytes > 0) == ("mn0", True), node

    for name, size in (("a", "2M"), ("b", node.extent_bytes)):
        body = CreateRegion(name=name, owner="cn0", size=size, protect=Protection.NONE)
        region = answered(create_region.sync_detailed(client=manager, body=body), 201)
        assert (region.name, region.size, region.state) == (name, node.extent_bytes, RegionState.ACTIVE), region
        assert [leg.memory_node for leg in region.legs] == ["mn0"], region
    refused = answered(create_region.sync_detailed(client=manager, body=body), 409)
    assert isinstance(refused, ErrorBody) and refused.code == ErrorCode.NAME_IN_USE, refused

    listed = answered(list_regions.sync_detailed(client=manager), 200)
    assert sorted(region.name for region in listed) == ["a", "b"], listed
    log = answered(list_events.sync_detailed(client=manager, region="a", limit=5), 200)
    # Each event is of the type of its kind.
    kinds = {type(event).__name__ for event in log.events}
    assert "EventRegionChanged" in kinds and all(event.region == "a" for event in log.events), log

    answered(destroy_region.sync_detailed("a", client=manager, force=True), 202, 204)
    for _ in range(600):
        listed = answered(list_regions.sync_detailed(client=manager), 200)
        if [region.name for region in listed] == ["b"]:
            break
        answered(list_events.sync_detailed(client=manager, after=log.newest, wait_ms=100), 200)
    else:
        raise AssertionError(f"the region is still there: {listed}")
