#!/bin/sh
# Runs in the guest: the kernel's host rides out a restart of the target in the middle of a load, and a
# block that it has marked as uncorrectable stays so.
# Usage: restart.sh ADDRESS PORT NQN
# Prints "ready for the restart" when whoever started this has to restart the target, which has to
# be the same namespace at the same port.
. /root/check.sh
. /root/connect.sh
address=$1 port=$2 nqn=$3
fabric="-t tcp -a $address -s $port"

# has_written SECTORS: whether that much has reached the namespace.
has_written() {
    set -- "$1" $(cat /sys/block/${device#/dev/}/stat)
    [ "$8" -ge "$1" ]
}

is_in_log() {
    dmesg | grep -q "$1"
}

# read_block: reads the marked block, which the load does not touch.
read_block() {
    nvme read $device -s $marked -c 0 -z 4096 -d /tmp/back
}

need "modprobe nvme-tcp" modprobe nvme-tcp
connect --reconnect-delay 1 --ctrl-loss-tmo 120 --keep-alive-tmo 5
marked=$((128 * 1024 * 1024 / 4096))
check "write-uncor" nvme write-uncor $device -s $marked -c 0
check_refused "a read of the marked block" read_block
# 2048 writes at 150 a second: far from its end when the first 4 MiB are there.
fio --name=load --filename=$device --size=32m --bs=16k --rw=randwrite --iodepth=8 --direct=1 \
    --ioengine=libaio --rate_iops=,150 --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --eta=never >/tmp/load 2>&1 &
load=$!
check "the load is under way" wait_until has_written 8192
echo "ready for the restart"
check "the kernel has seen the loss" wait_until is_in_log 'starting error recovery\|Reconnecting'
check "the kernel has reconnected" wait_until is_in_log 'Successfully reconnected'
wait $load
status=$?
check "the load went on, and all it wrote is there" \
    sh -c "cat /tmp/load; [ $status = 0 ] && ! grep -q 'err= *[1-9]' /tmp/load"
check_refused "a read of the marked block after the restart" read_block
head -c 4096 /dev/urandom >/tmp/block
check "a write ends the mark" nvme write $device -s $marked -c 0 -z 4096 -d /tmp/block
check "the block is read" read_block
check "it has what was written" cmp /tmp/block /tmp/back
check "no write was failed" sh -c "! dmesg | grep 'I/O error'"
disconnect
finish
