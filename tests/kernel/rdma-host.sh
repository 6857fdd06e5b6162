#!/bin/sh
# Runs in the guest, on a kernel with soft-RoCE: our NVMe/RDMA host against the kernel's target and against ours.
# Usage: rdma-host.sh TSUMUGI
. /root/check.sh
tsumugi=$1
address=10.0.2.15
kernel_nqn=nqn.2026-01.io.tsumugi:kernel-rdma kernel_port=4420
our_nqn=nqn.2026-01.io.tsumugi:rdma our_port=4421
nvmet=/sys/kernel/config/nvmet

# host COMMAND OPTION...: a command of our host over RDMA, at $port.
host() {
    host_command=$1
    shift
    timeout 120 $tsumugi nvme $host_command -t rdma -a $address -s $port --connect-timeout 30 "$@"
}

# refused STATUS PATTERN COMMAND OPTION...: a command that fails with this status, and says why.
refused() {
    refused_wanted=$1 refused_pattern=$2
    shift 2
    host "$@" >/tmp/refused 2>&1
    refused_status=$?
    cat /tmp/refused
    echo "(status $refused_status, wanted $refused_wanted)"
    [ $refused_status = $refused_wanted ] && grep -q -e "$refused_pattern" /tmp/refused
}

# exchange NAME OFFSET BYTES [OPTION...]: writes random bytes and reads them back.
exchange() {
    exchange_name=$1 exchange_offset=$2 exchange_bytes=$3
    shift 3
    head -c $exchange_bytes /dev/urandom >/tmp/new
    check "$exchange_name: write" \
        host write -n $nqn --offset $exchange_offset --destroy $serial --data-file /tmp/new "$@"
    check "$exchange_name: read" \
        host read -n $nqn --offset $exchange_offset --size $exchange_bytes --data-file /tmp/back "$@"
    check "$exchange_name: the same bytes" cmp /tmp/new /tmp/back
}

# data: reads and writes of all kinds.
data() {
    exchange "in capsules" 4096 4096
    exchange "in lent memory" 1048576 524288 --nr-io-queues 2
    check "many commands, four queues, verified" host perf -n $nqn --rw randwrite --bs 16k --iodepth 32 \
        --runtime 2 --verify --destroy $serial --nr-io-queues 4
    check "reads under way" host perf -n $nqn --rw randread --bs 4k --iodepth 64 --runtime 1 --nr-io-queues 2
    exchange "more than one command" 4194304 5242880
}

# kernel_target: exports a RAM disk with the kernel's target.
kernel_target() {
    modprobe nvmet-rdma && modprobe brd rd_nr=1 rd_size=65536 || return
    mkdir $nvmet/subsystems/$kernel_nqn $nvmet/subsystems/$kernel_nqn/namespaces/1 $nvmet/ports/1 || return
    echo 1 >$nvmet/subsystems/$kernel_nqn/attr_allow_any_host
    echo kernelpeer >$nvmet/subsystems/$kernel_nqn/attr_serial
    echo /dev/ram0 >$nvmet/subsystems/$kernel_nqn/namespaces/1/device_path
    echo 1 >$nvmet/subsystems/$kernel_nqn/namespaces/1/enable
    echo rdma >$nvmet/ports/1/addr_trtype
    echo ipv4 >$nvmet/ports/1/addr_adrfam
    echo $address >$nvmet/ports/1/addr_traddr
    echo $kernel_port >$nvmet/ports/1/addr_trsvcid
    ln -s $nvmet/subsystems/$kernel_nqn $nvmet/ports/1/subsystems/
}

is_up() {
    grep -q '^listening on' /tmp/target || ! kill -0 $target_pid 2>/dev/null
}

# serve OPTION...: starts our target; sets target_pid.
serve() {
    : >/tmp/target
    $tsumugi target --nqn $our_nqn --insecure --control none --fabric rdma \
        --listen $address:$our_port "$@" >/tmp/target 2>&1 &
    target_pid=$!
    wait_until is_up
    cat /tmp/target
    grep -q '^listening on' /tmp/target
}

# has_written BYTES: whether so many of /tmp/new are on the disk of our target.
has_written() {
    dd if=/root/disk bs=1M skip=32 count=1 2>/dev/null | cmp -s -n "$1" - /tmp/new
}

port=$kernel_port nqn=$kernel_nqn serial=kernelpeer
need "modprobe ib_uverbs" modprobe ib_uverbs
check "without a connection manager the host says what is missing" refused 1 'not available.*rdma_ucm' discover
for module in rdma_ucm rdma_rxe; do
    need "modprobe $module" modprobe $module
done
check "without a device it does too" refused 1 'not available.*rdma link' discover
need "a device of soft-RoCE" rdma link add rxe0 type rxe netdev eth0
check "RDMA has no digests" refused 1 'digest' discover --data-digest

echo "-- the kernel's target"
need "the kernel's target listens over RDMA" kernel_target
check "discover names the subsystem" says "$kernel_nqn" host discover
check "list shows the namespace" says '64' host list -n $nqn
check "id-ctrl names the subsystem" says "$kernel_nqn" host id-ctrl -n $nqn
check "an unknown subsystem is refused" refused 3 'Connect' id-ctrl -n nqn.2024-01.example:none
check "queues are as large as the controller allows" host connect-test -n $nqn --queue-size 3000
data
sync
check "the kernel has what we wrote" sh -c "dd if=/dev/ram0 bs=4096 skip=1024 count=1280 2>/dev/null | cmp - /tmp/new"
check_refused "the kernel's log has no error" sh -c "dmesg | grep -i -E 'nvmet.*(error|fail)|rxe.*(error|fail)'"

echo "-- our target"
port=$our_port nqn=$our_nqn serial=6b8f6f3e-52f7-4b0c-9d2a-0d1e6a1f4c12
need "a file of 64 MiB" dd if=/dev/zero of=/root/disk bs=1M count=64
need "our target listens over RDMA" serve --namespace file:/root/disk,buffered,uuid=$serial
check "discover names the subsystem" says "$our_nqn" host discover
check "id-ctrl names the subsystem" says "$our_nqn" host id-ctrl -n $nqn
data

echo "-- killed and started again"
head -c 16777216 /dev/urandom >/tmp/new
host write -n $nqn --offset 33554432 --destroy $serial --data-file /tmp/new --reconnect-delay 1 >/tmp/load 2>&1 &
load=$!
check "the load is under way" wait_until has_written 4096
kill -9 $target_pid
wait $target_pid 2>/dev/null
need "our target is back" serve --namespace file:/root/disk,buffered,uuid=$serial
wait $load
status=$?
check "the load went on" sh -c "cat /tmp/load; [ $status = 0 ]"
check "all that it wrote is there" sh -c "dd if=/root/disk bs=1M skip=32 count=16 2>/dev/null | cmp - /tmp/new"

echo "-- killed for good"
host perf -n $nqn --rw randread --bs 4k --iodepth 4 --runtime 60 --reconnect-delay 1 --ctrl-loss-tmo 3 \
    >/tmp/load 2>&1 &
load=$!
sleep 5
kill -9 $target_pid
wait $target_pid 2>/dev/null
wait $load
status=$?
check "the load ends with an error" sh -c "cat /tmp/load; [ $status != 0 ] && grep -q 'ctrl_loss_tmo' /tmp/load"

echo "-- no room"
need "our target takes two connections" serve --namespace memory:16M --connections-max 2
check "a third one is refused by its name" refused 3 'No Resources (status 6)' id-ctrl -n $nqn --nr-io-queues 2
kill $target_pid
wait $target_pid
finish
