# Sourced in a guest: a fabric of three daemons over a virtual cable, as in any lab, but on the guest's own kernel.
#
#   fabric FOLDER SIZE [AGENT OPTION]...   programs from FOLDER, a region `scratch` of SIZE; returns once it is attached;
#                                          POOL is the size of the memory node, if not that of the region
#   until_true SECONDS COMMAND...          waits, bounded
#
# Logs and sockets are in $FABRIC, a folder in the guest's memory.
FABRIC=/run/fabric
export CXLOE_AGENT=$FABRIC/agent.sock

until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "did not happen: $*" >&2
            return 1
        fi
        sleep 0.2
    done
}

fabric() {
    local programs=$1 size=$2
    shift 2
    mkdir -p "$FABRIC"
    modprobe -a veth af_packet || return
    ip netns add mn &&
        ip link add cn0 address 02:00:00:00:00:01 type veth peer name mn0 netns mn address 02:00:00:00:00:09 &&
        ip link set cn0 up && ip -n mn link set mn0 up || return
    export CXLOE_MANAGER=unix:$FABRIC/gmm.sock
    "$programs/gmm" serve --listen 127.0.0.1:0 --store "$FABRIC/gmm.redb" --socket "$FABRIC/gmm.sock" \
        >"$FABRIC/gmm.log" 2>&1 &
    until_true 60 "$programs/gmm" --manager "$CXLOE_MANAGER" status || return
    ip netns exec mn "$programs/mn-server" --name mn0 -i mn0 --link packet --wait sleep --manager "$CXLOE_MANAGER" \
        --insecure --pool anon --pool-size "${POOL:-$size}" --data-dir "$FABRIC" >"$FABRIC/mn.log" 2>&1 &
    "$programs/cn-agent" run --name cn0 -i cn0 --link packet --wait sleep --manager "$CXLOE_MANAGER" \
        --insecure --socket "$CXLOE_AGENT" --data-dir "$FABRIC/agent" "$@" >"$FABRIC/agent.log" 2>&1 &
    until_true 60 grep -q 'registered with the manager' "$FABRIC/mn.log" || return
    until_true 60 "$programs/gmm" --manager "$CXLOE_MANAGER" create-region -s "$size" --owner 02:00:00:00:00:01 scratch &&
        until_true 60 "$programs/cn-agent" read scratch
}
