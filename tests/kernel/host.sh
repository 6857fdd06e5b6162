#!/bin/sh
# Runs in the guest: the kernel's NVMe/TCP host against a target.
# Usage: host.sh ADDRESS PORT NQN short|long [COMMAND...]
# COMMANDs (compare dsm verify copy write-zeroes) are optional ones that this target has to offer; "version-2" is what
# version 2.0 of the specification demands and the kernel's own target does not have.
. /root/check.sh
. /root/connect.sh
address=$1 port=$2 nqn=$3 extent=$4
shift 4
wanted=$*
fabric="-t tcp -a $address -s $port"

# field NAME COMMAND...: the value of "NAME : VALUE" in what nvme-cli prints.
field() {
    field_name=$1
    shift
    "$@" | sed -n "s/^$field_name *: *//p" | head -1
}

identify() {
    check "id-ctrl names the subsystem" equal "$(field subnqn nvme id-ctrl $controller)" $nqn
    check "id-ctrl says what it is" says '^cntrltype *: 1' nvme id-ctrl $controller
    check "id-ns" says '^nsze *:' nvme id-ns $device
    blocks=$(($(field nsze nvme id-ns $device)))
    check "id-ns has the device's size" \
        equal $((blocks * $(blockdev --getss $device))) $(blockdev --getsize64 $device)
    check "ns-descs has an identifier" says '^\(uuid\|nguid\|eui64\) *:' nvme ns-descs $device
    check "list-ns" says ':0x1$' nvme list-ns $controller
    check "smart-log" says '^critical_warning[[:space:]]*: 0$' nvme smart-log $controller
    check "error-log" nvme error-log -e 1 $controller
    check "fw-log" nvme fw-log $controller
    check "get-feature (number of queues)" nvme get-feature -f 7 -H $controller
    check "list-subsys names the subsystem" says "NQN=$nqn" nvme list-subsys
    check "list-subsys shows the path" says 'tcp .*live' nvme list-subsys
}

# What controllers of version 2.0 have to have.
version_2() {
    check "get-feature (temperature threshold)" nvme get-feature -f 4 $controller
    check "set-feature (temperature threshold)" nvme set-feature -f 4 --value=343 $controller
    check "the threshold is set" says '0x0*157' nvme get-feature -f 4 $controller
    check "get-feature (timestamp)" nvme get-feature -f 0xe $controller
    check "get-feature (default of arbitration)" nvme get-feature -f 1 -s 1 $controller
    for page in 0 5 0x12 0x13; do
        check "get-log $page" nvme get-log -i $page -l 1024 $controller
    done
    check "smart-log after that" says '^critical_warning[[:space:]]*: 0$' nvme smart-log $controller
    check_refused "identify of an impossible namespace" nvme id-ns -n 70000 $controller
}

# offers BIT: whether the controller has the optional command of that bit of ONCS.
offers() {
    [ $(($(field oncs nvme id-ctrl $controller) >> $1 & 1)) = 1 ]
}

# optional NAME BIT COMMAND...: a command that is checked when it is offered or wanted.
optional() {
    optional_name=$1 optional_bit=$2
    shift 2
    if offers $optional_bit; then
        check "$optional_name" "$@"
    else
        case " $wanted " in *" $optional_name "*) check "$optional_name is offered" false ;; esac
    fi
}

compare() {
    head -c 4096 /dev/urandom >/tmp/block
    nvme write $device -s 64 -c $count -z 4096 -d /tmp/block &&
        nvme compare $device -s 64 -c $count -z 4096 -d /tmp/block &&
        ! nvme compare $device -s 128 -c $count -z 4096 -d /tmp/block
}

write_zeroes() {
    head -c 4096 /dev/urandom >/tmp/block
    nvme write $device -s 64 -c $count -z 4096 -d /tmp/block &&
        nvme write-zeroes $device -s 64 -c $count &&
        nvme read $device -s 64 -c $count -z 4096 -d /tmp/back &&
        head -c 4096 /dev/zero | cmp - /tmp/back
}

copy() {
    head -c 8192 /dev/urandom >/tmp/blocks
    each=$((count + 1))
    # Two ranges of 4 KiB, the second one first; then one range onto itself.
    nvme write $device -s 0 -c $((2 * each - 1)) -z 8192 -d /tmp/blocks &&
        nvme copy $device --sdlba=$((64 * each)) --slbs=$each,0 --blocks=$count,$count --format=0 &&
        nvme read $device -s $((64 * each)) -c $((2 * each - 1)) -z 8192 -d /tmp/back &&
        { tail -c 4096 /tmp/blocks; head -c 4096 /tmp/blocks; } | cmp - /tmp/back &&
        nvme copy $device --sdlba=$each --slbs=0 --blocks=$((2 * each - 1)) --format=0 &&
        nvme read $device -s $each -c $((2 * each - 1)) -z 8192 -d /tmp/back &&
        cmp /tmp/blocks /tmp/back &&
        ! nvme copy $device --sdlba=$blocks --slbs=0 --blocks=0 --format=0
}

verify_blocks() {
    nvme verify $device -s 0 -c 1023 && ! nvme verify $device -s $blocks -c 0
}

commands() {
    count=$((4096 / $(blockdev --getss $device) - 1))   # blocks of 4 KiB, counted from 0
    check "flush" nvme flush $device -n 1
    optional compare 0 compare
    optional dsm 2 nvme dsm $device -n 1 --ad -s 0 -b $((count + 1))
    optional write-zeroes 3 write_zeroes
    optional verify 7 verify_blocks
    optional copy 8 copy
    check_refused "a read beyond the end" \
        nvme read $device -s $blocks -c $count -z 4096 -d /tmp/back
}

filesystem() {
    check "mkfs.ext4" mkfs.ext4 -q -F $device
    need "mount" mount -t ext4 $device /mnt
    verify "fio verifies a file" --directory=/mnt --size=8m --bsrange=4k-128k --rw=randwrite \
        --iodepth=8 --fsync_on_close=1
    cp -r /usr/sbin /mnt/ && sync
    before=$(cd /mnt && find . -type f | sort | xargs sha256sum | sha256sum)
    check "umount" umount /mnt
    check "fsck.ext4 finds nothing" e2fsck -f -n $device
    check "mount again" mount -t ext4 $device /mnt
    check "the files are the same" \
        equal "$before" "$(cd /mnt && find . -type f | sort | xargs sha256sum | sha256sum)"
    check "umount again" umount /mnt
}

need "modprobe nvme-tcp" modprobe nvme-tcp
need "discover" nvme discover $fabric
check "discover names the subsystem" says "^subnqn: *$nqn$" nvme discover $fabric
check "discover says tcp" says '^trtype: *tcp' nvme discover $fabric
check_refused "connecting to an unknown subsystem" \
    nvme connect $fabric -n nqn.2024-01.example:none

connect --nr-io-queues 2
check "two I/O queues" equal "$(cat $(controller)/queue_count)" 3
identify
case " $wanted " in *" version-2 "*) version_2 ;; esac
commands
filesystem
disconnect

size=8m io_size=4m
[ $extent = long ] && size=64m io_size=32m
for digests in --hdr-digest --data-digest "--hdr-digest --data-digest --nr-io-queues 2"; do
    connect $digests
    verify "fio verifies small blocks" --filename=$device --size=$size --bs=4k --io_size=$io_size \
        --rw=randwrite --iodepth=16
    verify "fio verifies large blocks" --filename=$device --size=$size --bs=512k \
        --rw=write --iodepth=4
    disconnect
done

# What the kernel thinks of the target; its messages name the fault.
check_refused "no complaint in the kernel's log" \
    sh -c "dmesg | grep -E 'nvme.*(error|timeout|failed|invalid|unexpected)|I/O error' |
           grep -v -e 'Connect Invalid Data Parameter' -e 'failed to connect' |
           grep ."
finish
