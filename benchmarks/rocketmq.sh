#!/bin/bash
# Apache RocketMQ 5 (name server and broker) for `make compare`, from Maven's central repository.
# Nothing is installed on the machine itself, and nothing listens beyond the loopback device.
#
#   rocketmq.sh setup    fetch the jars, compile rocketmq/Peer.java (again does no harm; ~0.1 GB)
#   rocketmq.sh ready    succeeds when that has been done
#   rocketmq.sh start    start both with an empty store, wait until they serve
#   rocketmq.sh stop     stop both, by the pids that start wrote
#   rocketmq.sh pid      print the broker's pid; fails when there is none
#   rocketmq.sh client   run the load program, which takes commands on stdin (see Peer.java)
#   rocketmq.sh data     print the directory with the stored messages
#
# Needs Maven and a JDK, 11 or newer. Environment: PEER_ROCKETMQ_DIR (where all of it is; default: the
# folder peer-rocketmq among the temporary files).
set -euo pipefail

DIR=${PEER_ROCKETMQ_DIR:-${TMPDIR:-/tmp}/peer-rocketmq}
HERE=$(cd "$(dirname "$0")" && pwd)/rocketmq
NAMESRV_PORT=19876 BROKER_PORT=19911   # the broker takes BROKER_PORT-2 and +1 as well
CP="$DIR/classes:$DIR/lib/*"
# Java 9 and later keep Netty and the store out of these unless told otherwise.
OPENS=(--add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED
       --add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED
       --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED
       --add-exports=java.base/sun.nio.ch=ALL-UNNAMED
       -Dio.netty.tryReflectionSetAccessible=true)

say() { echo "rocketmq.sh: $*" >&2; }

ready() { [ "$DIR/classes/Peer.class" -nt "$HERE/Peer.java" ]; }

setup() {
    command -v mvn >/dev/null && command -v javac >/dev/null ||
        { say "needs Maven and a JDK; on Debian: apt-get install maven default-jdk-headless"; return 1; }
    mkdir -p "$DIR/lib" "$DIR/classes"
    if ! cmp -s "$HERE/pom.xml" "$DIR/lib/pom.xml"; then
        rm -f "$DIR"/lib/*
        mvn -q -B -f "$HERE/pom.xml" dependency:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$DIR/lib"
        cp "$HERE/pom.xml" "$DIR/lib/pom.xml"
    fi
    javac -nowarn -cp "$DIR/lib/*" -d "$DIR/classes" "$HERE/Peer.java"
    say "ready: $(cd "$DIR/lib" && ls rocketmq-broker-*.jar)"
}

configure() {
    # Of what a consumer asks for it gives 32 messages at most, unless the two limits are lifted.
    cat >"$DIR/broker.conf" <<CONF
brokerClusterName=peer
brokerName=peer
brokerId=0
namesrvAddr=127.0.0.1:$NAMESRV_PORT
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
listenPort=$BROKER_PORT
storePathRootDir=$DIR/store
storePathCommitLog=$DIR/store/commitlog
mappedFileSizeCommitLog=134217728
flushDiskType=ASYNC_FLUSH
brokerRole=ASYNC_MASTER
enablePropertyFilter=true
diskMaxUsedSpaceRatio=95
waitTimeMillsInSendQueue=10000
maxTransferCountOnMessageInMemory=1024
maxTransferBytesOnMessageInMemory=4194304
maxTransferCountOnMessageInDisk=1024
maxTransferBytesOnMessageInDisk=4194304
CONF
    echo "listenPort=$NAMESRV_PORT" >"$DIR/namesrv.conf"
    # Else the client finds the broker's logging in the class path, and tells all about it on stdout.
    echo '<configuration><root level="OFF"/></configuration>' >"$DIR/quiet.xml"
}

pid() { local p; p=$(cat "$DIR/${1:-broker}.pid" 2>/dev/null) && [ -d "/proc/$p" ] &&
        tr '\0' ' ' <"/proc/$p/cmdline" | grep -q org.apache.rocketmq && echo "$p"; }

run() {  # name port heap class arguments...
    local name=$1 port=$2 heap=$3
    shift 3
    ROCKETMQ_HOME=$DIR setsid java "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC "${OPENS[@]}" \
        -XX:MaxDirectMemorySize=1g -Duser.home="$DIR" -Drocketmq.home.dir="$DIR" \
        -Drocketmq.log.root.level=WARN -cp "$CP" "$@" </dev/null >"$DIR/$name.out" 2>&1 &
    echo $! >"$DIR/$name.pid"
    for _ in $(seq 1200); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    say "$name did not come up:"; tail -20 "$DIR/$name.out" >&2; return 1
}

start() {
    if pid >/dev/null; then say "already running, pid $(pid)"; return; fi
    ready || { say "not set up: run $0 setup"; return 1; }
    stop; rm -rf "$DIR/store"; mkdir -p "$DIR/store"; configure
    run namesrv "$NAMESRV_PORT" 128m org.apache.rocketmq.namesrv.NamesrvStartup -c "$DIR/namesrv.conf"
    run broker "$BROKER_PORT" 1g org.apache.rocketmq.broker.BrokerStartup -c "$DIR/broker.conf"
    say "serving, pid $(pid); 127.0.0.1:$BROKER_PORT"
}

stop() {
    local name p
    for name in broker namesrv; do
        if p=$(pid "$name"); then
            kill "$p"
            for _ in $(seq 300); do [ -d "/proc/$p" ] || break; sleep 0.1; done
            if [ -d "/proc/$p" ]; then kill -KILL "$p"; fi
        fi
        rm -f "$DIR/$name.pid"
    done
}

case ${1:-} in
    setup) setup ;;
    ready) ready ;;
    start) start ;;
    stop) stop ;;
    pid) pid ;;
    client) exec java -Xmx1g "${OPENS[@]}" -Duser.home="$DIR" -Dpeer.namesrv=127.0.0.1:$NAMESRV_PORT \
                 -Drmq.logback.configurationFile="$DIR/quiet.xml" -cp "$CP" Peer ;;
    data) echo "$DIR/store" ;;
    *) sed -n '2,14p' "$0" >&2; exit 2 ;;
esac
