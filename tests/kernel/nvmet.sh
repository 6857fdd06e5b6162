#!/bin/sh
# Runs in the guest: `tsumugi target --engine kernel` sets the kernel's target up, and takes it down however
# the process ends; the kernel's host and our own use it.
# Usage: nvmet.sh TSUMUGI KEYS        KEYS sets `one` to a DH-HMAC-CHAP key
. /root/check.sh
. /root/connect.sh
. "$2"
tsumugi=$1
nqn=nqn.2026-01.io.tsumugi:nvmet
address=127.0.0.1 port=4420
fabric="-t tcp -a $address -s $port"
nvmet=/sys/kernel/config/nvmet

is_up() {
    grep -q '^listening on' /tmp/target || ! kill -0 $target_pid 2>/dev/null
}

# serve OPTION...: starts a target; sets target_pid.
serve() {
    $tsumugi target --engine kernel --nqn $nqn "$@" >/tmp/target 2>&1 &
    target_pid=$!
    wait_until is_up
    cat /tmp/target
    grep -q '^listening on' /tmp/target
}

# ends SIGNAL: whether it ends well on a signal.
ends() {
    kill -$1 $target_pid
    wait $target_pid
}

# is_clean: nothing of ours is in configfs, and no journal is left.
is_clean() {
    [ -z "$(ls $nvmet/subsystems $nvmet/hosts $nvmet/ports | grep -v ':$')" ] &&
        [ -z "$(ls /sys/kernel/config/nullb 2>/dev/null | grep -v features)" ] &&
        [ -z "$(ls /run/tsumugi-target)" ]
}

# keeper: the process that takes down what a killed target made.
keeper() {
    for process in /proc/[0-9]*; do
        tr '\0' ' ' <$process/cmdline | grep -q 'target-keeper /run' && echo ${process#/proc/}
    done
}

# refused PATTERN OPTION...: a target called $refused_nqn that does not start, and says why.
refused_nqn=$nqn
refused() {
    refused_pattern=$1
    shift
    timeout 60 $tsumugi target --engine kernel --nqn $refused_nqn "$@" >/tmp/refused 2>&1
    refused_status=$?
    cat /tmp/refused
    [ $refused_status = 1 ] && grep -q -e "$refused_pattern" /tmp/refused
}

need "modprobe nvme-tcp" modprobe nvme-tcp

echo "-- memory, a file, and both hosts"
need "a file of 64 MiB" dd if=/dev/zero of=/root/disk bs=1M count=64
need "the kernel's target starts" serve --namespace memory:64M --namespace file:/root/disk,buffered
check "it says that it is the kernel's" says "the kernel's target, tcp" cat /tmp/target
check "its journal is private" equal 600 "$(stat -c %a /run/tsumugi-target/*)"
check "a second of the same name is refused" refused 'is there already' \
    --listen 127.0.0.1:4421 --namespace memory:16M
refused_nqn=$nqn-two
check "so is a second user of the file" refused 'disk' \
    --listen 127.0.0.1:4421 --namespace file:/root/disk,buffered
refused_nqn=$nqn
check "the first still serves" says ":.*$nqn" nvme discover $fabric
connect
check "id-ctrl names the model" says 'Tsumugi target' nvme id-ctrl $controller
check "both namespaces are there" equal 2 "$(nvme list-ns $controller | grep -c ':0x')"
verify "fio verifies the memory" --filename=$device --size=8m --bsrange=4k-128k --rw=randwrite --iodepth=8
disconnect
check "our host reads the file's size" says '64' $tsumugi nvme list -a $address -s $port -n $nqn
check "it ends on SIGTERM" ends TERM
check "nothing is left" is_clean

echo "-- keys, and kill -9"
host=nqn.2026-01.io.tsumugi:host
echo "$one" >/root/key && chmod 600 /root/key
need "a target with a key starts" serve --namespace memory:16M --host $host,dhchap-key=/root/key
check "the key in configfs is root's alone" equal 600 "$(stat -c %a $nvmet/hosts/$host/dhchap_key)"
check_refused "a host without a key" nvme connect $fabric -n $nqn --hostnqn $host
check_refused "a host without its name" nvme connect $fabric -n $nqn
need "a host with the key connects" nvme connect $fabric -n $nqn --hostnqn $host --dhchap-secret "$one"
check "it disconnects" nvme disconnect -n $nqn
kill -9 $target_pid
wait $target_pid 2>/dev/null
check "its keeper takes all down" wait_until is_clean

echo "-- kill -9 of both"
need "a target starts" serve --namespace memory:16M
check "there is one keeper" equal 1 "$(keeper | wc -l)"
kill -9 $(keeper) $target_pid
wait $target_pid 2>/dev/null
check_refused "it stays in configfs" is_clean
need "the next one removes it first" serve --namespace memory:16M
check "and says so" says 'removing what a target left' cat /tmp/target
check "it ends on SIGINT" ends INT
check "nothing is left after that" is_clean

echo "-- what it cannot do"
check "port 0" refused 'chooses no port' --listen 127.0.0.1:0 --namespace memory:16M
check "cores" refused 'cores' --cores 2 --namespace memory:16M
check "read-only" refused 'read-only' --namespace memory:16M,read-only
check "offload without such a driver" refused 'not available.*attr_offload\|attr_offload' --offload --namespace memory:16M
check "an address that is not ours" refused 'does not listen on' --insecure --listen 192.0.2.1:4420 --namespace memory:16M
check "nothing is left of these" is_clean
if modprobe nvmet-rdma 2>/dev/null && modprobe rdma_rxe 2>/dev/null; then
    echo "(RDMA is here)"
else
    check "RDMA says what is missing" refused 'not available\|does not listen' --fabric rdma --namespace memory:16M
    check "nothing is left of that either" is_clean
fi
finish
