#!/bin/sh
# Runs in the guest, on a kernel with soft-RoCE: the kernel's NVMe/RDMA host against our target over RDMA.
# Usage: rdma.sh TSUMUGI
. /root/check.sh
. /root/connect.sh
tsumugi=$1
nqn=nqn.2026-01.io.tsumugi:rdma
address=10.0.2.15 port=4420
fabric="-t rdma -a $address -s $port"

is_up() {
    grep -q '^control socket\|^listening on' /tmp/target || ! kill -0 $target_pid 2>/dev/null
}

# serve OPTION...: starts our target; sets target_pid.
serve() {
    : >/tmp/target
    TSUMUGI_LOG=info $tsumugi target --nqn $nqn --insecure "$@" >/tmp/target 2>>/tmp/target.log &
    target_pid=$!
    wait_until is_up
    cat /tmp/target /tmp/target.log
    grep -q '^listening on' /tmp/target
}

# ends SIGNAL: whether it ends well on a signal.
ends() {
    kill -$1 $target_pid
    wait $target_pid
}

# refused PATTERN OPTION...: a target that does not start, and says why.
refused() {
    refused_pattern=$1
    shift
    timeout 60 $tsumugi target --nqn $nqn-refused --insecure --control none "$@" >/tmp/refused 2>&1
    refused_status=$?
    cat /tmp/refused
    [ $refused_status = 1 ] && grep -q -e "$refused_pattern" /tmp/refused
}

has_failed() {
    ! kill -0 $load 2>/dev/null
}

is_in_log() {
    dmesg | grep -q "$1"
}

# has_written SECTORS: whether that much has reached the namespace.
has_written() {
    set -- "$1" $(cat /sys/block/${device#/dev/}/stat)
    [ "$8" -ge "$1" ]
}

# Before what depends on it: a removed device is taken from its users in the reverse order, and without an adapter that
# can leave at any time ib_uverbs waits for our process, so that the connection manager has to have its turn before.
need "modprobe ib_uverbs" modprobe ib_uverbs
check "without a device the target says what is missing" refused 'rdma_ucm\|RDMA device' \
    --fabric rdma --listen $address:$port --namespace memory:16M
for module in rdma_ucm rdma_rxe nvme-rdma; do
    need "modprobe $module" modprobe $module
done
need "a device of soft-RoCE" rdma link add rxe0 type rxe netdev eth0
check "an address of no device is refused" refused 'cannot listen.*over RDMA' \
    --fabric rdma --listen 192.0.2.1:$port --namespace memory:16M
check "RDMA has no TLS and one core" refused 'one core' \
    --fabric rdma --cores 2 --listen $address:$port --namespace memory:16M

echo "-- the kernel's host"
need "our target listens over RDMA and TCP" serve --listen 127.0.0.1:$port --listen-rdma $address:$port \
    --namespace memory:64M
need "discover" nvme discover $fabric
check "discover names the subsystem" says "^subnqn: *$nqn$" nvme discover $fabric
check "discover says rdma" says '^trtype: *rdma' nvme discover $fabric
check "discovery over TCP names RDMA too" says '^trtype: *rdma' nvme discover -t tcp -a 127.0.0.1 -s $port
check_refused "connecting to an unknown subsystem" nvme connect $fabric -n nqn.2024-01.example:none
connect --nr-io-queues 2
check "id-ctrl names the subsystem" says "^subnqn *: $nqn" nvme id-ctrl $controller
check "its SGLs are keyed" says '^sgls *: 0x100005' nvme id-ctrl $controller
check "list-subsys shows the path" says 'rdma .*live' nvme list-subsys
check "ctl shows the transport" says '"transport": *"rdma"' \
    $tsumugi target ctl connections --json
verify "fio verifies small blocks" --filename=$device --size=4m --io_size=2m --bs=4k --rw=randwrite --iodepth=16
verify "fio verifies blocks in and out of capsules" --filename=$device --size=8m --bsrange=4k-256k \
    --rw=randwrite --iodepth=8
verify "fio verifies large blocks" --filename=$device --size=16m --bs=1m --rw=write --iodepth=4
check "mkfs.ext4" mkfs.ext4 -q -F $device
need "mount" mount -t ext4 $device /mnt
cp -r /usr/sbin /mnt/ && sync
before=$(cd /mnt && find . -type f | sort | xargs sha256sum | sha256sum)
check "umount" umount /mnt
check "fsck.ext4 finds nothing" e2fsck -f -n $device
check "mount again" mount -t ext4 $device /mnt
check "the files are the same" \
    equal "$before" "$(cd /mnt && find . -type f | sort | xargs sha256sum | sha256sum)"
check "umount again" umount /mnt
disconnect
check "the target ends cleanly" ends TERM
check "it has counted what it did" grep 'doorbells' /tmp/target.log
grep 'doorbells' /tmp/target.log

echo "-- killed and started again"
need "a file of 64 MiB" dd if=/dev/zero of=/root/disk bs=1M count=64
need "our target serves the file" serve --fabric rdma --listen $address:$port --namespace file:/root/disk,buffered
connect --nr-io-queues 1 --reconnect-delay 1 --ctrl-loss-tmo 300
fio --name=load --filename=$device --size=16m --bs=16k --rw=randwrite --iodepth=8 --direct=1 \
    --ioengine=libaio --rate_iops=,60 --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --eta=never >/tmp/load 2>&1 &
load=$!
check "the load is under way" wait_until has_written 4096
kill -9 $target_pid
wait $target_pid 2>/dev/null
check "the kernel has seen the loss" wait_until is_in_log 'starting error recovery\|Reconnecting'
need "our target is back" serve --fabric rdma --listen $address:$port --namespace file:/root/disk,buffered
check "the kernel has reconnected" wait_until is_in_log 'Successfully reconnected'
wait $load
status=$?
check "the load went on, and all it wrote is there" \
    sh -c "cat /tmp/load; [ $status = 0 ] && ! grep -q 'err= *[1-9]' /tmp/load"
disconnect

echo "-- killed for good"
connect --nr-io-queues 1 --reconnect-delay 1 --ctrl-loss-tmo 3
kill -9 $target_pid
wait $target_pid 2>/dev/null
check "a read ends with an error" sh -c "! timeout 200 dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
check "the controller goes" wait_until is_absent

echo "-- keys, and no room"
host=nqn.2024-01.io.tsumugi:host id=aaaaaaaa-0000-4000-8000-000000000001
need "a key" $tsumugi nvme gen-dhchap-key --output /root/key
need "our target asks for it" serve --fabric rdma --listen $address:$port --namespace memory:16M \
    --host $host,dhchap-key=/root/key --connections-max 2
check_refused "a host without a key" nvme connect $fabric -n $nqn -q $host -I $id
check_refused "a host that is not named" nvme connect $fabric -n $nqn
connect -q $host -I $id --dhchap-secret "$(cat /root/key)" --nr-io-queues 1
check "the host has proved itself" is_in_log 'authenticated with hash'
check "a block can be read" dd if=$device of=/dev/null bs=4k count=1 iflag=direct
check_refused "a host that there is no room for" nvme connect $fabric -n $nqn -q $host -I $id --duplicate-connect
check "it got the status of the specification" is_in_log 'nvme status 6 '

echo "-- the device is removed"
# The command returns when the target's process has closed the device, which librdmacm does at its end.
(rdma link del rxe0 && touch /tmp/deleted) &
check "the listener notices" wait_until grep -q 'device of a listener was removed' /tmp/target.log ||
    { tail -n 5 /tmp/target.log; dmesg | tail -n 10; cat /proc/$(pidof rdma)/stack; }
check "the kernel's host lets go" wait_until is_absent
check "the target goes on" kill -0 $target_pid
check "it ends cleanly" ends TERM
check "then the device goes" wait_until test -e /tmp/deleted
finish
