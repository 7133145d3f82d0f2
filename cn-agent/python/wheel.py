#!/usr/bin/env python3
"""Makes the wheel of the package `cxloe` from the library that cargo has built.

    wheel.py [--strip] LIBRARY FOLDER       prints the path of the wheel

LIBRARY is `libcxloe_python.so` of any profile. A wheel is a zip with known metadata, and nothing is compiled here: the
wheel that is tested holds the library of the same build as everything else. (maturin would ask cargo for a build of its
own, with other settings of PyO3, which compiles the workspace a second time.) The wheel of one library is the same, byte
for byte, each time.

Only the standard library is used.
"""

import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
#: The oldest Python, whose stable interface is the first that has the buffer protocol; `abi3-py311` in Cargo.toml.
PYTHON = (3, 11)
#: Machines by the number that an ELF file has for them.
MACHINES = {62: "x86_64", 183: "aarch64"}


def version() -> str:
    """The workspace's version."""
    manifest = (HERE / "../../Cargo.toml").read_text()
    found = re.search(r'^\[workspace\.package\]\nversion = "([^"]+)"', manifest, re.MULTILINE)
    if not found:
        raise SystemExit("Cargo.toml has no version of the workspace's packages")
    return found[1]


def platform(library: bytes) -> str:
    """The platform of a library: the machine, and the oldest glibc that has the symbols the library asks for."""
    if library[:5] != b"\x7fELF\x02":
        raise SystemExit("the library is not a 64-bit ELF file")
    machine = MACHINES.get(int.from_bytes(library[18:20], "little"))
    if machine is None:
        raise SystemExit(f"no wheel is made for this machine: {', '.join(MACHINES.values())} are known")
    minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", library)]
    if not minors:
        raise SystemExit("the library asks for no glibc: wheels are made of builds with glibc")
    return f"manylinux_2_{max(minors)}_{machine}"


def stripped(library: pathlib.Path) -> bytes:
    """The library without what only debuggers read."""
    with tempfile.TemporaryDirectory() as folder:
        small = pathlib.Path(folder) / library.name
        subprocess.run(["strip", "--strip-unneeded", "-o", small, library], check=True)
        return small.read_bytes()


def metadata(version: str) -> str:
    """The package's metadata, with the page for its users."""
    oldest = ".".join(map(str, PYTHON))
    fields = [
        "Metadata-Version: 2.4",
        "Name: cxloe",
        f"Version: {version}",
        "Summary: CXL over Ethernet: memory of other servers, by lines and mapped regions",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        f"Requires-Python: >={oldest}",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3",
        "Classifier: Programming Language :: Rust",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(fields) + "\n\n" + (HERE / "ABOUT.md").read_text()


def make(library: pathlib.Path, folder: pathlib.Path, strip: bool) -> pathlib.Path:
    """Writes the wheel into the folder, and returns its path."""
    content = stripped(library) if strip else library.read_bytes()
    tag = f"cp{PYTHON[0]}{PYTHON[1]}-abi3-{platform(content)}"
    about = f"cxloe-{version()}.dist-info"
    sources = [file for file in sorted((HERE / "cxloe").rglob("*")) if file.suffix in (".py", ".pyi", ".typed")]
    files = {str(file.relative_to(HERE)): file.read_bytes() for file in sources}
    files["cxloe/_cxloe.abi3.so"] = content
    files[f"{about}/METADATA"] = metadata(version()).encode()
    files[f"{about}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: cxloe wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    files[f"{about}/licenses/LICENSE"] = (HERE / "../../LICENSE").read_bytes()

    def record(name: str, content: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(content)}\n"

    lines = [record(name, content) for name, content in files.items()] + [f"{about}/RECORD,,\n"]
    files[f"{about}/RECORD"] = "".join(lines).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"cxloe-{version()}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # Of one date, so that the same files are the same wheel.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    return wheel


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description="Makes the wheel of the package cxloe.")
    parser.add_argument("--strip", action="store_true", help="leave out what only debuggers read")
    parser.add_argument("library", type=pathlib.Path, help="libcxloe_python.so, as cargo builds it")
    parser.add_argument("folder", type=pathlib.Path, help="where the wheel goes")
    arguments = parser.parse_args()
    print(make(arguments.library, arguments.folder, arguments.strip))


if __name__ == "__main__":
    main()
