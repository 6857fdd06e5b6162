#!/bin/sh
# Runs in the guest: containers on snapshots of a thin pool (dm-thin), the way below the file system to
# what a union does above it. For `tsumugi union bench` to be compared with: whether it works, and how
# many bytes a first write of 4 KiB takes; speed means nothing in an emulated machine.
#
# usage: tools/kernel-guest run --add tests/kernel/check.sh tests/kernel/thin.sh
. /root/check.sh
files=8 block_sectors=128
cd /tmp || exit 1

# loop FILE SIZE: a loop device on a new file.
loop() {
    truncate -s "$2" "$1"
    losetup -f >"$1.device"
    losetup "$(cat "$1.device")" "$1" && cat "$1.device"
}

# used: blocks of data that the pool has given away.
used() {
    dmsetup status pool | awk '{ split($6, blocks, "/"); print blocks[1] }'
}

# thin NUMBER NAME: a volume of the pool.
thin() {
    dmsetup create "$2" --table "0 131072 thin /dev/mapper/pool $1"
}

need "modules" modprobe -a loop ext4 dm-thin-pool
metadata=$(loop metadata 8M) data=$(loop data 128M)
need "a pool" dmsetup create pool \
    --table "0 $(($(blockdev --getsz "$data"))) thin-pool $metadata $data $block_sectors 0"
need "a volume" dmsetup message /dev/mapper/pool 0 "create_thin 0"
need "the volume's device" thin 0 image
need "its file system" mkfs.ext4 -q /dev/mapper/image
mkdir -p image one two
mount /dev/mapper/image image
for number in $(seq $files); do
    dd if=/dev/urandom of=image/$number bs=1M count=2 2>/dev/null
done
(cd image && md5sum [0-9]*) >sums
umount image
dmsetup suspend image
for number in 1 2; do
    need "snapshot $number" dmsetup message /dev/mapper/pool 0 "create_snap $number 0"
done
dmsetup resume image
need "the first container" thin 1 one
need "the second container" thin 2 two
mount /dev/mapper/one one
mount /dev/mapper/two two
sync
before=$(used)
for number in $(seq $files); do
    dd if=/dev/zero of=one/$number bs=4k count=1 seek=$((number * 30)) conv=notrunc,fsync 2>/dev/null
done
sync
taken=$((($(used) - before) * block_sectors * 512))
check "the other container sees what it saw" sh -c "cd two && md5sum -c ../sums"
check "each file of this one is changed" \
    sh -c "cd one && [ \$(md5sum -c ../sums 2>/dev/null | grep -c FAILED) = $files ]"
echo "bytes of the pool for each byte written: $((taken / (files * 4096)))"
check "they are blocks, not files" [ "$taken" -lt $((files * (1 << 20))) ]
umount one
umount two
dmsetup remove one
dmsetup remove two
mount -o ro /dev/mapper/image image
check "the image is as it was" sh -c "cd image && md5sum -c ../sums"
umount image
dmsetup remove image
dmsetup remove pool
finish
