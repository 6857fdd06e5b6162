#!/bin/sh
# Runs in the guest: the kernel's native multipath on two of our targets, which are killed one after the other
# in the middle of a load.
# Usage: paths.sh ADDRESS PORT OTHER-PORT NQN
# Prints "ready N" when whoever started this has to do step N: 1 kills the first target, 2 starts it again at its port,
# 3 kills the second one. The second one's group is non-optimized.
. /root/check.sh
. /root/connect.sh
address=$1 port=$2 other_port=$3 nqn=$4
fabric="-t tcp -a $address -s $port"
options="--reconnect-delay 1 --ctrl-loss-tmo 120 --keep-alive-tmo 5"

# sectors: written to the disk so far.
sectors() {
    set -- $(cat /sys/block/${device#/dev/}/stat)
    echo "$7"
}

has_written() {
    [ "$(sectors)" -ge "$1" ]
}

is_in_log() {
    dmesg | grep -q "$1"
}

# paths STATE: number of paths in a state of asymmetric access.
paths() {
    cat /sys/block/nvme*c*n*/ana_state | grep -c "^$1\$"
}

has_both_paths() {
    [ "$(paths optimized)" = 1 ] && [ "$(paths non-optimized)" = 1 ]
}

need "modprobe nvme-tcp" modprobe nvme-tcp
check "the kernel has native multipath" says Y cat /sys/module/nvme_core/parameters/multipath
connect $options
check "connect the second path" nvme connect -t tcp -a $address -s $other_port -n $nqn $options
check "one disk with an optimized and a non-optimized path" wait_until has_both_paths
check "there is one disk" equal "$(ls /sys/block | grep -c -E '^nvme[0-9]+n[0-9]+$')" 1
# 4096 writes at 150 a second: far from its end when the first 4 MiB are there.
fio --name=load --filename=$device --size=64m --bs=16k --rw=randwrite --iodepth=8 --direct=1 \
    --ioengine=libaio --rate_iops=,150 --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --eta=never >/tmp/load 2>&1 &
load=$!
check "the load is under way" wait_until has_written 8192
echo "ready 1"
check "the kernel has seen the loss" wait_until is_in_log 'starting error recovery\|Reconnecting'
check "the load goes on through the other path" wait_until has_written $(($(sectors) + 2048))
echo "ready 2"
check "the kernel has reconnected" wait_until is_in_log 'Successfully reconnected'
check "the path is optimized again" wait_until has_both_paths
echo "ready 3"
wait $load
status=$?
check "the load went on, and all it wrote is there" \
    sh -c "cat /tmp/load; [ $status = 0 ] && ! grep -q 'err= *[1-9]' /tmp/load"
check "no I/O failed" sh -c "! dmesg | grep 'I/O error'"
check "disconnect" says 'disconnected 2 controller' nvme disconnect -n $nqn
check "the disk is gone" wait_until is_absent
finish
