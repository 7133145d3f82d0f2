# Sourced in a guest: a fabric of three daemons over a virtual cable, as in any lab, but on the guest's own kernel.
#
#   fabric FOLDER SIZE [AGENT OPTION]...   programs from FOLDER, a region `scratch` of SIZE; returns once it is attached;
#                                          POOL is the size of the memory node, if not that of the region
#   fabric_on MN CN FOLDER SIZE [AGENT OPTION]...   the same with the memory node and the compute node on these interfaces
#   start_cn                               starts the agent of a fabric again
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

# Runs a command of the memory node: beside the agent, or at the other end of the cable.
in_mn() { "$@"; }

start_cn() { "${CN_COMMAND[@]}" >"$FABRIC/agent.log" 2>&1 & }

fabric() {
    modprobe -a veth af_packet || return
    ip netns add mn &&
        ip link add cn0 address 02:00:00:00:00:01 type veth peer name mn0 netns mn address 02:00:00:00:00:09 &&
        ip link set cn0 up && ip -n mn link set mn0 up || return
    in_mn() { ip netns exec mn "$@"; }
    fabric_on 'mn0 --link packet' 'cn0 --link packet' "$@"
}

fabric_on() {
    local mn cn programs=$3 size=$4
    read -ra mn <<<"$1"
    read -ra cn <<<"$2"
    shift 4
    mkdir -p "$FABRIC"
    export CXLOE_MANAGER=unix:$FABRIC/gmm.sock
    CN_COMMAND=("$programs/cn-agent" run --name cn0 -i "${cn[@]}" --wait sleep --manager "$CXLOE_MANAGER" --insecure
        --socket "$CXLOE_AGENT" --data-dir "$FABRIC/agent" "$@")
    "$programs/gmm" serve --listen 127.0.0.1:0 --store "$FABRIC/gmm.redb" --socket "$FABRIC/gmm.sock" \
        >"$FABRIC/gmm.log" 2>&1 &
    until_true 60 "$programs/gmm" --manager "$CXLOE_MANAGER" status || return
    in_mn "$programs/mn-server" --name mn0 -i "${mn[@]}" --wait sleep --manager "$CXLOE_MANAGER" \
        --insecure --pool anon --pool-size "${POOL:-$size}" --data-dir "$FABRIC" >"$FABRIC/mn.log" 2>&1 &
    start_cn
    until_true 60 grep -q 'registered with the manager' "$FABRIC/mn.log" || return
    until_true 60 "$programs/gmm" --manager "$CXLOE_MANAGER" create-region -s "$size" --owner 02:00:00:00:00:01 scratch &&
        until_true 60 "$programs/cn-agent" read scratch
}
