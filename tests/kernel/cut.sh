#!/bin/sh
# Runs in the guest: which files of a container does a crash damage? Its disk is cut off some seconds after the last
# write, without a flush, then everything is set up anew on what the disk has by then. Each file must be the original,
# or the original with what was written. The disk keeps each write that it has answered: it has no cache to lose.
#
#   btrfs     a snapshot of btrfs
#   thin      ext4 on a snapshot in a thin pool of the device mapper
#   volatile  overlayfs that syncs nothing, on ext4: known to damage files, which proves the test
#
# Needs a disk of 1 GiB.
# Usage: cut.sh SECONDS...    from the last write to the cut, one round each
. /root/check.sh
files=200
disk=/dev/vdb
sectors=$(blockdev --getsz $disk)

# below: puts a device that can be cut off before the disk.
below() {
    dmsetup create disk --table "0 $sectors linear $disk 0"
}

# cut: from now on nothing reaches the disk.
cut() {
    dmsetup suspend --noflush --nolockfs disk && dmsetup load disk --table "0 $sectors error" &&
        dmsetup resume disk
}

# image DIRECTORY: makes the files that containers see.
image() {
    for number in $(seq $files); do
        dd if=/tmp/random of=$1/$number bs=4k count=$((number % 16 + 1)) skip=$((number % 64)) status=none ||
            return
    done
}

# write DIRECTORY: 4 KiB to each file.
write() {
    for number in $(seq $files); do
        dd if=/tmp/written of=$1/$number bs=4k count=1 seek=$((number % 16 / 2)) conv=notrunc status=none ||
            return
    done
}

btrfs_make() {
    below && mkfs.btrfs -q -f /dev/mapper/disk && mount /dev/mapper/disk /mnt &&
        btrfs -q subvolume create /mnt/image && image /mnt/image &&
        btrfs -q subvolume snapshot /mnt/image /mnt/container && sync
}

btrfs_again() {
    below && mount /dev/mapper/disk /mnt
}

btrfs_end() {
    umount /mnt
    dmsetup remove --retry disk
}

# pool: a thin pool on the disk: its records, then its data.
pool() {
    below && dmsetup create records --table "0 16384 linear /dev/mapper/disk 0" &&
        dmsetup create data --table "0 $((sectors - 16384)) linear /dev/mapper/disk 16384" &&
        dmsetup create pool --table \
            "0 $((sectors - 16384)) thin-pool /dev/mapper/records /dev/mapper/data 128 0 1 skip_block_zeroing"
}

# volume NAME NUMBER
volume() {
    dmsetup create $1 --table "0 262144 thin /dev/mapper/pool $2"
}

thin_make() {
    dd if=/dev/zero of=$disk bs=1M count=1 2>/dev/null && pool &&
        dmsetup message /dev/mapper/pool 0 "create_thin 0" && volume image 0 &&
        mkfs.ext4 -q /dev/mapper/image && mount /dev/mapper/image /mnt && mkdir /mnt/container &&
        image /mnt/container && umount /mnt && dmsetup remove --retry image &&
        dmsetup message /dev/mapper/pool 0 "create_snap 1 0" && volume container 1 &&
        mount /dev/mapper/container /mnt && sync
}

thin_again() {
    pool && volume container 1 && mount /dev/mapper/container /mnt
}

thin_end() {
    umount /mnt
    for name in container pool data records disk; do
        dmsetup remove --retry $name
    done
}

volatile_make() {
    below && mkfs.ext4 -q /dev/mapper/disk && mount /dev/mapper/disk /mnt &&
        mkdir /mnt/image /mnt/upper /mnt/work /mnt/container && image /mnt/image && sync &&
        mount -t overlay -o lowerdir=/mnt/image,upperdir=/mnt/upper,workdir=/mnt/work,volatile overlay \
            /mnt/container
}

# The kernel refuses to mount it so again: what the upper directory has, hides the image's.
volatile_again() {
    below && mount /dev/mapper/disk /mnt && rm -r /mnt/work && mkdir /mnt/work &&
        mount -t overlay -o lowerdir=/mnt/image,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/container
}

volatile_end() {
    umount /mnt/container
    umount /mnt
    dmsetup remove --retry disk
}

# count: how many files of the container are as they were, have what was written, and are damaged.
count() {
    original=0 changed=0 damaged=0
    for number in $(seq $files); do
        if cmp -s /tmp/original/$number /mnt/container/$number; then
            original=$((original + 1))
        elif cmp -s /tmp/changed/$number /mnt/container/$number; then
            changed=$((changed + 1))
        else
            damaged=$((damaged + 1))
        fi
    done
}

# round SCHEME SECONDS: sets original, changed and damaged.
round() {
    need "$1: files and a container" "$1_make"
    check "$1: it writes to all" write /mnt/container
    sleep "$2"
    need "$1: the disk is cut off $2 s later" cut
    "$1_end" >/dev/null 2>&1
    need "$1: it mounts again" "$1_again"
    count
    echo "$1, $2 s: of $files files $original are as they were, $changed changed, $damaged damaged"
    "$1_end"
}

need "modules" modprobe -a ext4 btrfs overlay dm-thin-pool
mkdir -p /mnt /tmp/original /tmp/changed
dd if=/dev/urandom of=/tmp/random bs=4k count=80 2>/dev/null
dd if=/dev/urandom of=/tmp/written bs=4k count=1 2>/dev/null
image /tmp/original
cp /tmp/original/* /tmp/changed
write /tmp/changed
for seconds in "$@"; do
    for scheme in btrfs thin volatile; do
        round $scheme "$seconds"
        if [ $scheme = volatile ]; then
            check "volatile, $seconds s: files are damaged" [ $damaged -gt 0 ]
        else
            check "$scheme, $seconds s: no file is damaged" [ $damaged = 0 ]
        fi
    done
done
finish
