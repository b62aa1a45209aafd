#!/bin/bash
# A real RabbitMQ in a chroot, for `make compare`: nothing is installed on the machine itself but
# debootstrap, and nothing listens beyond the loopback device.
#
#   rabbitmq.sh setup    bootstrap the chroot and install (as root; again does no harm; ~0.5 GB)
#   rabbitmq.sh ready    succeeds when that has been done
#   rabbitmq.sh start    start the broker, wait until it serves
#   rabbitmq.sh stop     stop it, by the pid that start wrote
#   rabbitmq.sh status   versions, listeners, CPU seconds used
#   rabbitmq.sh wipe     (stopped) remove the data directory
#   rabbitmq.sh unmount  (stopped) take away the chroot's /proc; then its folder can be removed
#   rabbitmq.sh ctl ...  rabbitmqctl in the chroot
#   rabbitmq.sh pid      print the beam process's pid; fails when there is none
#   rabbitmq.sh data     print the directory with the stream data
#
# For Debian and what descends from it. Environment: PEER_DIR (where the chroot is; default: the
# folder peer among the temporary files), PEER_SUITE (default: forky, which has RabbitMQ 4),
# PEER_MIRROR (default: the archive that this machine's apt uses), PEER_PROMETHEUS (a port; off).
set -euo pipefail

PEER_DIR=${PEER_DIR:-${TMPDIR:-/tmp}/peer}
PEER_SUITE=${PEER_SUITE:-forky}
ROOT=$PEER_DIR/$PEER_SUITE
STREAM_PORT=15552 AMQP_PORT=15672 MGMT_PORT=15673 DIST_PORT=15674 EPMD_PORT=15675
NODE=rabbit@localhost
BASE=/tmp/rabbit                      # inside the chroot
PIDFILE=$PEER_DIR/rabbitmq.pid

say() { echo "rabbitmq.sh: $*" >&2; }

mirror() {
    if [ -n "${PEER_MIRROR:-}" ]; then echo "$PEER_MIRROR"; return; fi
    # The archive that this machine's apt uses for its own (non-security) Debian suite.
    local codename
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    apt-get indextargets --format '$(CODENAME) $(SITE)' 'Created-By: Packages' |
        awk -v c="$codename" '$1 == c { print $2; exit }'
}

in_root() { chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
            LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }

# debootstrap made the device nodes that Erlang needs, so /dev is not bound into the chroot.
mounts() { mountpoint -q "$ROOT/proc" || mount -t proc proc "$ROOT/proc"; }

ready() { [ -x "$ROOT/usr/lib/rabbitmq/bin/rabbitmq-server" ]; }

setup() {
    if [ ! -e "$ROOT/.bootstrapped" ]; then
        command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap
        say "bootstrapping $PEER_SUITE into $ROOT"
        mkdir -p "$ROOT"
        # An old debootstrap has no script of a newer suite's name: "sid" serves all of them.
        debootstrap --variant=minbase "$PEER_SUITE" "$ROOT" "$(mirror)" sid
        touch "$ROOT/.bootstrapped"
    fi
    mounts
    cp -L /etc/resolv.conf "$ROOT/etc/resolv.conf"
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
    chmod 755 "$ROOT/usr/sbin/policy-rc.d"
    if ! ready; then
        say "installing rabbitmq-server"
        # The package lists that debootstrap verified and left behind are used as they are:
        # apt-get update may refuse a testing suite whose cached index is past its date.
        in_root apt-get install -y --no-install-recommends rabbitmq-server
    fi
    grep -q localhost "$ROOT/etc/hosts" 2>/dev/null || echo '127.0.0.1 localhost' >>"$ROOT/etc/hosts"
    in_root dpkg-query -W rabbitmq-server erlang-base
}

rmq_env() {
    cat <<ENV
RABBITMQ_NODENAME=$NODE
RABBITMQ_BASE=$BASE
RABBITMQ_MNESIA_BASE=$BASE/data
RABBITMQ_LOG_BASE=$BASE/log
RABBITMQ_CONFIG_FILE=$BASE/rabbitmq.conf
RABBITMQ_ADVANCED_CONFIG_FILE=$BASE/advanced.config
RABBITMQ_ENABLED_PLUGINS_FILE=$BASE/enabled_plugins
RABBITMQ_PID_FILE=$BASE/pid
RABBITMQ_DIST_PORT=$DIST_PORT
ERL_EPMD_PORT=$EPMD_PORT
ERL_EPMD_ADDRESS=127.0.0.1
RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}
RABBITMQ_CTL_DIST_PORT_MIN=$((DIST_PORT + 10))
RABBITMQ_CTL_DIST_PORT_MAX=$((DIST_PORT + 20))
HOME=$BASE
ENV
}

configure() {
    mkdir -p "$ROOT$BASE/data" "$ROOT$BASE/log"
    cat >"$ROOT$BASE/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$AMQP_PORT
stream.listeners.tcp.1 = 127.0.0.1:$STREAM_PORT
stream.advertised_host = 127.0.0.1
stream.advertised_port = $STREAM_PORT
management.tcp.ip = 127.0.0.1
management.tcp.port = $MGMT_PORT
default_user = guest
default_pass = guest
log.file.level = warning
disk_free_limit.absolute = 1GB
CONF
    echo '[].' >"$ROOT$BASE/advanced.config"
    local plugins=rabbitmq_stream,rabbitmq_stream_management,rabbitmq_management
    if [ -n "${PEER_PROMETHEUS:-}" ]; then            # off by default: it costs the peer time and memory
        plugins=$plugins,rabbitmq_prometheus
        printf 'prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = %s\n' "$PEER_PROMETHEUS" >>"$ROOT$BASE/rabbitmq.conf"
    fi
    echo "[$plugins]." >"$ROOT$BASE/enabled_plugins"
}

with_env() { local vars; mapfile -t vars < <(rmq_env); in_root "${vars[@]}" "$@"; }

pid() { local p; p=$(cat "$PIDFILE" 2>/dev/null) && [ -d "/proc/$p" ] &&
        tr '\0' ' ' <"/proc/$p/cmdline" | grep -q beam && echo "$p"; }

serves() { (exec 3<>/dev/tcp/127.0.0.1/$STREAM_PORT) 2>/dev/null; }

start() {
    if pid >/dev/null; then say "already running, pid $(pid)"; return; fi
    ready || { say "not set up: run $0 setup, as root"; return 1; }
    mounts; configure
    rm -f "$ROOT$BASE/pid"
    mapfile -t vars < <(rmq_env)
    setsid chroot "$ROOT" /usr/bin/env -i PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 "${vars[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server \
        >"$PEER_DIR/rabbitmq.out" 2>&1 </dev/null &
    for _ in $(seq 240); do
        if [ -s "$ROOT$BASE/pid" ] && serves; then
            cp "$ROOT$BASE/pid" "$PIDFILE"
            say "serving, beam pid $(pid); stream 127.0.0.1:$STREAM_PORT amqp $AMQP_PORT management $MGMT_PORT"
            return
        fi
        sleep 0.5
    done
    say "did not come up:"; tail -20 "$PEER_DIR/rabbitmq.out" >&2; return 1
}

stop() {
    local p
    if ! p=$(pid); then say "not running"; return; fi
    with_env /usr/lib/rabbitmq/bin/rabbitmqctl stop >/dev/null 2>&1 || kill -TERM "$p" || true
    for _ in $(seq 120); do [ -d "/proc/$p" ] || break; sleep 0.5; done
    if [ -d "/proc/$p" ]; then kill -KILL "$p"; fi
    rm -f "$PIDFILE"
    # epmd was started by the broker, on a port of its own.
    local e
    for e in $(pgrep -x epmd || true); do
        [ "$(readlink "/proc/$e/root")" = "$(readlink -f "$ROOT")" ] && kill "$e" || true
    done
    say "stopped"
}

status() {
    in_root dpkg-query -W rabbitmq-server erlang-base 2>/dev/null || { say "not set up"; return 1; }
    local p
    if p=$(pid); then
        awk '{printf "beam user+sys %.2f s\n", ($14 + $15) / 100}' "/proc/$p/stat"
        with_env /usr/lib/rabbitmq/bin/rabbitmq-diagnostics -q listeners
        with_env /usr/lib/rabbitmq/bin/rabbitmqctl -q version
    else
        echo "stopped"
    fi
}

case ${1:-} in
    setup) setup ;;
    ready) ready ;;
    start) start ;;
    stop) stop ;;
    status) status ;;
    wipe) pid >/dev/null && { say "stop it first"; exit 1; }; rm -rf "${ROOT:?}$BASE" ;;
    unmount) pid >/dev/null && { say "stop it first"; exit 1; }
             ! mountpoint -q "$ROOT/proc" || umount "$ROOT/proc" ;;
    ctl) shift; with_env /usr/lib/rabbitmq/bin/rabbitmqctl "$@" ;;
    pid) pid ;;
    data) echo "$ROOT$BASE/data/$NODE/stream" ;;
    *) sed -n '2,18p' "$0" >&2; exit 2 ;;
esac
