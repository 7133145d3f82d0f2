"""How a compute node joins at the manager and learns of its regions. Pages "Joining, tokens and rights" and "The REST
interface" of the book."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from noise import Key

KEY, IDENTITY, AUTHORITY = "node.key", "node.pem", "ca.pem"


def written(mac: bytes) -> str:
    return mac.hex(":")


def private(path: Path, text: str) -> None:
    """Writes a file that is its owner's alone."""
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(text)


def call(url: str, context: ssl.SSLContext, path: str, body: dict[str, Any], token: str | None = None) -> Any:
    place = urlsplit(url)
    connection = http.client.HTTPSConnection(place.hostname or "", place.port, context=context, timeout=30)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        raise ConnectionError(f"POST {path}: {response.status} {answer.decode()}")
    return json.loads(answer)


def trusting(authority: str) -> ssl.SSLContext:
    """TLS to managers that this authority has signed for, under whatever address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return context


def join(url: str, authority: str, token: str, mac: bytes, folder: Path) -> None:
    """Has the manager know this node by new keys, and keeps them in the folder."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != token.rsplit(".", 1)[1]:
        raise ConnectionError("the token is of another manager")
    key, tls = Key(), generate_private_key(SECP256R1())
    point = tls.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    asked = {
        "node": {"compute_node": written(mac)},
        "tls_key": base64.b64encode(point).decode(),
        "key": base64.b64encode(key.public).decode(),
        "macs": [written(mac)],
        # Its keys are new each time: it takes the place of the node that it was.
        "take_over": True,
    }
    joined = call(url, trusting(authority), "/v1/join", asked, token)
    secret = tls.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    private(folder / IDENTITY, secret + joined["certificate"])
    private(folder / AUTHORITY, joined["authority"])
    private(folder / KEY, base64.b64encode(key.secret()).decode())


@dataclass(frozen=True)
class Region:
    """A region that lies on one memory node."""

    mn: bytes
    mn_key: bytes
    cmem: int
    size: int


def register(url: str, mac: bytes, name: str, folder: Path) -> dict[str, Region]:
    """Says that the node is there; its regions by name."""
    context = trusting((folder / AUTHORITY).read_text())
    context.load_cert_chain(folder / IDENTITY)
    key = own_key(folder)
    node = {
        "cn_id": written(mac),
        "name": name,
        "key": base64.b64encode(key.public).decode(),
        "instance_id": int.from_bytes(os.urandom(8), "big"),
    }
    registered = call(url, context, "/v1/compute-nodes", node)
    simple = [region for region in registered["regions"] if len(region["legs"]) == 1]
    return {region["name"]: _region(region) for region in simple}


def own_key(folder: Path) -> Key:
    return Key.of(base64.b64decode((folder / KEY).read_text()))


def _region(region: dict[str, Any]) -> Region:
    (leg,) = region["legs"]
    mn = bytes.fromhex(leg["macs"][0].replace(":", ""))
    return Region(mn, base64.b64decode(leg["mn_key"]), leg["cmem_base"], region["size"])
