#!/bin/sh
# Makes sure that the tools named as arguments are on this machine: need.sh rust cc ip unshare
#
# What a Debian or Ubuntu package brings is installed with apt-get, after the command has been shown: by root directly,
# by everybody else through sudo. Where that cannot be, the command is printed for somebody who can, and this ends with
# an error. Rust is never installed from here: where it is missing or too old, this says how to get it.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# The oldest compiler that can build the workspace is the one its manifest names.
need_rust() {
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../../Cargo.toml")
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        fail "Rust is not on this machine; this project needs $oldest or newer." \
            "  Debian 13, Ubuntu 24.04 and newer: apt-get install rustup && rustup default stable" \
            "  others: follow https://rustup.rs, then open a new shell"
    fi
    found=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n' "$oldest" "${found%%-*}" | sort -V | head -n 1)" != "$oldest" ]; then
        fail "rustc is $found, this project needs $oldest or newer." \
            "  installed with rustup: rustup update stable && rustup default stable" \
            "  installed as a package of the system: see https://rustup.rs for a newer one"
    fi
}

# The tools that a name stands for: some of what is done here takes several.
tools_of() {
    case $1 in
        qemu) echo qemu-system-x86_64 qemu-x86_64 busybox cpio depmod ;;
        nbd) echo nbdinfo nbdcopy nbdsh fio qemu-img qemu-io nbd-client mkfs.ext2 ;;
        cxl) echo cxl ndctl daxctl ;;
        chromium) echo chromium chromedriver ;;
        deploy) echo systemd-analyze strace ;;
        deb) echo dpkg-deb dpkg-shlibdeps patchelf strip lintian ;;
        repo) echo dpkg-scanpackages gpg gpg-agent ;;
        tshark) echo tshark dumpcap ;;
        python-protocol) echo python3 cryptography ;;
        peers) echo redis-server memcached ucx_perftest fi_pingpong nbdkit nbdfuse ib_read_lat ibv_devinfo rdma ;;
        ansible) echo ansible-playbook ansible-lint ;;
        schemathesis | openapi-python-client | kubernetes-validate | pytest) echo python3 venv ;;
        programs) echo python3 numpy redis-server sqlite3 zstd memtester musl-gcc fio bwrap php php-xml php-mbstring lua5.4 node java javac ;;
        *) echo "$1" ;;
    esac
}

# Whether a tool is here. An ordinary user's PATH often lacks the folders of the administration tools.
is_here() {
    case $1 in
        # A library, which programs look for in these places; libclang-cpp is another, and may be there alone.
        libclang) ls /usr/lib/*/libclang[-.]*so* /usr/lib/llvm-*/lib/libclang[-.]*so* /usr/lib*/libclang[-.]*so* 2>/dev/null | grep -qv libclang-cpp ;;
        # Packages of the system's own Python, where another comes first as well.
        # The driver that the tests use, and a header that DPDK's include; the driver's folder has the version in its name.
        dpdk) ls /usr/lib/*/dpdk/pmds-*/librte_net_memif.so* /usr/include/bsd/string.h >/dev/null 2>&1 ;;
        # Drivers of DPDK for the cards that QEMU emulates.
        dpdk-cards) ls /usr/lib/*/dpdk/pmds-*/librte_net_e1000.so* /usr/lib/*/dpdk/pmds-*/librte_net_virtio.so* /usr/lib/*/dpdk/pmds-*/librte_net_vmxnet3.so* >/dev/null 2>&1 ;;
        numpy | cryptography) /usr/bin/python3 -c "import $1" 2>/dev/null || python3 -c "import $1" 2>/dev/null ;;
        venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
        php-*) php -m 2>/dev/null | grep -qix "${1#php-}" ;;
        *) PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null ;;
    esac
}

# The versions of programs from PyPI that the tests were last seen to pass with.
version_of() {
    case $1 in
        schemathesis) echo 4.32.5 ;;
        openapi-python-client) echo 0.29.1 ;;
        kubernetes-validate) echo 1.37.0 ;;
        pytest) echo 9.2.0 ;;
        numpy) echo 2.4.6 ;;
    esac
}

# What is not installed in the system: the kernel of virtual machines, kept in a cache of the user's, and programs from
# PyPI, which have each a folder of its own beside what is built.
fetch() {
    for name in "$@"; do
        case $name in
            qemu) "$(dirname "$0")/../vm/guest/guest" --prepare >/dev/null ;;
            dpdk) fetch_dpdk_headers ;;
            schemathesis | openapi-python-client | kubernetes-validate) fetch_from_pypi "$name" "$(version_of "$name")" ;;
            # With what the tests of the Python package import.
            pytest) fetch_from_pypi pytest "$(version_of pytest)" "numpy==$(version_of numpy)" ;;
        esac
    done
}

# Arguments: the program, its version, and further requirements.
fetch_from_pypi() {
    program=$1 version=$2
    shift 2
    place=${CARGO_TARGET_DIR:-$(dirname "$0")/../../target}/$program
    case $("$place/bin/$program" --version 2>/dev/null) in *"$version") return 0 ;; esac
    echo "Installing $program $version into $place"
    python3 -m venv --clear "$place" && "$place/bin/pip" install --quiet "$program==$version" "$@" ||
        fail "$program could not be installed: PyPI has to be reached, or $place/bin/$program be there already."
}

# The headers of DPDK without the package of them, which brings 200 others: taken out of it, into the folder of the build.
fetch_dpdk_headers() {
    place=${CARGO_TARGET_DIR:-$(dirname "$0")/../../target}/dpdk/headers
    if pkg-config --exists libdpdk 2>/dev/null || [ -d "$place/usr/include" ]; then return 0; fi
    echo "Taking the headers out of libdpdk-dev, into $place"
    mkdir -p "$place"
    (cd "$place" && apt-get download -qq libdpdk-dev && dpkg -x libdpdk-dev_*.deb . && rm libdpdk-dev_*.deb) ||
        fail "The headers of DPDK could not be fetched: install libdpdk-dev."
}

# The latest of the packages whose names begin so; the version of DPDK's libraries is in their names.
latest_package() {
    apt-cache pkgnames "$1" | grep -E "^$1[0-9]+\$" | sort -V | tail -n 1
}

# The packages that bring a tool, with what they bring to run it.
packages_of() {
    case $1 in
        cc) echo gcc libc6-dev ;;
        libclang) echo libclang1 ;;
        c++) echo g++ ;;
        ip | rdma) echo iproute2 ;;
        unshare | setpriv) echo util-linux ;;
        etcd) echo etcd-server ;;
        # With it, the C compiler that cgo calls.
        go) echo golang-go gcc libc6-dev ;;
        qemu-system-x86_64) echo qemu-system-x86 ;;
        qemu-x86_64) echo qemu-user ;;
        busybox) echo busybox-static ;;
        cpio) echo cpio ;;
        depmod) echo kmod ;;
        systemd-analyze | systemd-sysusers) echo systemd ;;
        dpkg-deb) echo dpkg ;;
        dpkg-shlibdeps | dpkg-scanpackages) echo dpkg-dev ;;
        gpg | gpg-agent) echo "$1" ;;
        strip) echo binutils ;;
        strace | patchelf | lintian) echo "$1" ;;
        nbdinfo | nbdcopy | nbdfuse) echo libnbd-bin ;;
        nbdsh) echo python3-libnbd ;;
        nbdkit | memcached | fio) echo "$1" ;;
        ucx_perftest) echo ucx-utils ;;
        fi_pingpong) echo libfabric-bin ;;
        # The libraries of verbs devices come with what lists them.
        ib_read_lat) echo perftest ;;
        ibv_devinfo) echo ibverbs-utils ibverbs-providers ;;
        # Debian has the command cxl in the package of ndctl.
        cxl | ndctl) echo ndctl ;;
        daxctl) echo daxctl ;;
        chromium) echo chromium ;;
        chromedriver) echo chromium-driver ;;
        tshark) echo tshark ;;
        ethtool) echo ethtool ;;
        nsenter | setsid) echo util-linux ;;
        ansible-playbook) echo ansible-core ;;
        ansible-lint) echo ansible-lint ;;
        dumpcap) echo wireshark-common ;;
        promtool) echo prometheus ;;
        tmux | stress-ng) echo "$1" ;;
        numpy | cryptography) echo "python3-$1" ;;
        venv) echo python3-venv ;;
        python3 | redis-server | sqlite3 | zstd | memtester | fio) echo "$1" ;;
        musl-gcc) echo musl-tools ;;
        php) echo php-cli ;;
        lua5.4) echo lua5.4 ;;
        java | javac) echo default-jdk-headless ;;
        node) echo nodejs ;;
        php-xml | php-mbstring) echo "$1" ;;
        dpdk) for library in net-memif net-af-packet mempool-ring; do latest_package "librte-$library"; done && echo libbsd-dev ;;
        dpdk-cards) for library in e1000- virtio vmxnet3-; do latest_package "librte-net-$library"; done ;;
        bwrap) echo bubblewrap ;;
        qemu-img | qemu-io) echo qemu-utils ;;
        nbd-client) echo nbd-client ;;
        mkfs.ext2) echo e2fsprogs ;;
        *) fail "need.sh does not know which package brings $1: add it to packages_of" ;;
    esac
}

packages=
# shellcheck disable=SC2046 # one argument per tool
for tool in $(for name in "$@"; do tools_of "$name"; done); do
    if [ "$tool" = rust ]; then
        need_rust
    elif ! is_here "$tool"; then
        packages="$packages $(packages_of "$tool")"
    fi
done
if [ -z "$packages" ]; then
    fetch "$@"
    exit 0
fi

command -v apt-get >/dev/null ||
    fail "missing here; in Debian's names, the packages are:$packages" "Install what your system calls them, and try again."
as_root=
if [ "$(id -u)" != 0 ]; then
    as_root=sudo
    command -v sudo >/dev/null ||
        fail "missing here, and there is no sudo to install it with. As root, run:" "  apt-get install$packages"
fi
echo "Missing on this machine:$packages"
echo "Installing now: ${as_root:+$as_root }apt-get install --yes --no-install-recommends$packages"
$as_root apt-get update -qq || echo "The lists of packages could not be refreshed; going on with those at hand." >&2
# shellcheck disable=SC2086 # one argument per package
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -o Dpkg::Use-Pty=0 --yes --no-install-recommends $packages
# A package can put another one out, as one from backports that does not go with it: looked at once more.
[ -n "${CXLOE_NEED_AGAIN:-}" ] || CXLOE_NEED_AGAIN=1 exec "$0" "$@"
fetch "$@"
