#!/bin/sh
# Runs in the guest: two hosts of the kernel reserve a namespace of our target with nvme-cli.
# Usage: reserve.sh ADDRESS PORT NQN
. /root/check.sh
. /root/connect.sh
address=$1 port=$2 nqn=$3
fabric="-t tcp -a $address -s $port"

# Path of the controller of host N. The kernel takes the two hosts for two paths of one and joins them in one
# block device, so that commands go to the controllers themselves.
controller_of() {
    for entry in /sys/class/nvme/nvme*; do
        grep -q "host-$1$" $entry/hostnqn 2>/dev/null && echo $entry && return
    done
}

has_namespace() {
    ls -d $(controller_of $1)/nvme*n1
}

# host N: connects as another host.
host() {
    need "connect as host $1" nvme connect $fabric -n $nqn --hostnqn nqn.2024-01.io.tsumugi:host-$1 \
        --hostid 0000000$1-0000-4000-8000-000000000000
    need "the namespace of host $1 appears" wait_until has_namespace $1
}

# io CONTROLLER OPCODE OPTION...: a command for the first 4 KiB.
io() {
    io_device=$1 io_opcode=$2
    shift 2
    nvme io-passthru $io_device --opcode=$io_opcode --namespace-id=1 --cdw12=$count --data-len=4096 "$@"
}

write() {
    head -c 4096 /dev/urandom >/tmp/block
    io $1 1 --write --input-file=/tmp/block
}

read_block() {
    io $1 2 --read --raw-binary >/tmp/back
}

# report PATTERN: the report, seen by the second host, has such a line.
report() {
    says "$1" nvme resv-report $two -n 1 --eds
}

need "modprobe nvme-tcp" modprobe nvme-tcp
host 1
host 2
one=/dev/$(basename $(controller_of 1)) two=/dev/$(basename $(controller_of 2))
count=$((4096 / $(blockdev --getss /dev/$(block_name)) - 1))   # blocks of 4 KiB, counted from 0
check "the controller announces reservations" \
    equal $(($(nvme id-ctrl $one | sed -n 's/^oncs *: *//p') >> 5 & 1)) 1
check "all types and persistence" says '^rescap *: *0xff' nvme id-ns $one -n 1
check "no registrant" report 'regctl *: 0'
check "host 1 registers, to last" nvme resv-register $one -n 1 --nrkey=0xa1 --rrega=0 --cptpl=3
check "host 2 registers" nvme resv-register $two -n 1 --nrkey=0xb2 --rrega=0
check "two registrants" report 'regctl *: 2'
check "they last" report 'ptpls *: 1'
check_refused "another key" nvme resv-register $two -n 1 --nrkey=0xb3 --rrega=0
check "host 1 acquires write exclusive" nvme resv-acquire $one -n 1 --crkey=0xa1 --rtype=1 --racqa=0
check "the report has the type" report 'rtype *: 1'
check_refused "host 2 acquires" nvme resv-acquire $two -n 1 --crkey=0xb2 --rtype=1 --racqa=0
check "host 1 writes" write $one
cp /tmp/block /tmp/written
check_refused "host 2 writes" write $two
check "host 2 reads" read_block $two
check "host 2 reads what host 1 wrote" cmp /tmp/written /tmp/back
check "host 2 preempts and aborts, exclusive access" \
    nvme resv-acquire $two -n 1 --crkey=0xb2 --prkey=0xa1 --rtype=2 --racqa=2
check "one registrant" report 'regctl *: 1'
check "host 2 writes now" write $two
check_refused "host 1 writes now" write $one
check_refused "host 1 reads" read_block $one
check "host 1 is notified" says 'Page Type.*: 1 ' nvme resv-notif-log $one
check_refused "host 1 registers by force of a wrong key" \
    nvme resv-register $one -n 1 --crkey=1 --nrkey=0xa1 --rrega=2
check "host 1 registers without regard to its key" \
    nvme resv-register $one -n 1 --nrkey=0xa1 --rrega=2 --iekey
check_refused "a release of another type" nvme resv-release $two -n 1 --crkey=0xb2 --rtype=1 --rrela=0
check "host 2 releases" nvme resv-release $two -n 1 --crkey=0xb2 --rtype=2 --rrela=0
check "host 1 writes again" write $one
check "host 1 acquires for all registrants" \
    nvme resv-acquire $one -n 1 --crkey=0xa1 --rtype=6 --racqa=0
check "host 2 writes too" write $two
check "host 2 unregisters" nvme resv-register $two -n 1 --crkey=0xb2 --rrega=1
check_refused "host 2 reads as a stranger" read_block $two
need "disconnect" nvme disconnect -n $nqn
finish
