#!/bin/sh
# Runs in the guest: a pool, a target and a union where the kernel is old or its administrator has switched
# io_uring off; which engine it is and why is told. On kernels that have the sysctl, with each of its values.
# Needs a disk. Usage: engine.sh TSUMUGI [KERNEL]     KERNEL begins the release that the guest must have
. /root/check.sh
tsumugi=$1 expected=${2-}
uuid=6b8f6f3e-52f7-4b0c-9d2a-0d1e6a1f4c17
switch=/proc/sys/kernel/io_uring_disabled

# names ENGINE PATTERN: what is told of the engine, with the reason.
names() {
    says "^engine $1: .*$2" $tsumugi --version --verbose
}

# all_on ENGINE: whether that is what all processes of the pool run on.
all_on() {
    says '"alive"' $tsumugi status --job guest --json >/tmp/status &&
        ! grep -o '"engine": *"[a-z_]*"' /tmp/status | grep -v "\"$1\""
}

# pool ENGINE: brings a pool up, uses its mount and takes it down.
pool() {
    need "$1: a pool comes up" $tsumugi up --local 1 --size 32M --device-dir /mnt/devices --job guest
    mount=$(sed -n 's|^[^ ]* \([^ ]*\) fuse.tsumugi .*|\1|p' /proc/mounts | head -n 1)
    check "$1: its processes run on it" all_on $1
    check "$1: a file is written" sh -c "dd if=/root/tsumugi of=$mount/file bs=64k count=64 2>/dev/null && sync"
    check "$1: it is read" equal "$(dd if=$mount/file iflag=direct bs=64k 2>/dev/null | sha256sum)" \
        "$(dd if=/root/tsumugi bs=64k count=64 2>/dev/null | sha256sum)"
    check "$1: names work" sh -c "mkdir $mount/d && mv $mount/file $mount/d/ && ls $mount/d | grep -qx file"
    check "$1: it goes down" $tsumugi down --job guest
}

# fabrics ENGINE: our host on our target, with a file behind it.
fabrics() {
    $tsumugi target --listen 127.0.0.1:4420 --nqn nqn.2026-01.io.tsumugi:guest \
        --namespace file:/mnt/disk,size=8M,uuid=$uuid >/tmp/target 2>&1 &
    target=$!
    need "$1: a target listens" wait_until grep -q '^listening on' /tmp/target
    at="-a 127.0.0.1 -s 4420 -n nqn.2026-01.io.tsumugi:guest"
    dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
    check "$1: the host writes" $tsumugi nvme write $at --destroy $uuid --data-file /tmp/data
    check "$1: the host reads" $tsumugi nvme read $at --size 8388608 --data-file /tmp/back
    check "$1: the same" cmp /tmp/data /tmp/back
    kill $target
    check "$1: the target ends" wait $target
}

# union ENGINE
union() {
    rm -rf /mnt/u && mkdir -p /mnt/u/lower /mnt/u/upper /mnt/u/work /mnt/u/at
    echo old >/mnt/u/lower/file
    check "$1: a union is mounted" $tsumugi union \
        -o lowerdir=/mnt/u/lower,upperdir=/mnt/u/upper,workdir=/mnt/u/work /mnt/u/at
    check "$1: a copy-up" sh -c "echo new >>/mnt/u/at/file && grep -q old /mnt/u/at/file && grep -q new /mnt/u/at/file"
    check "$1: unmounting" umount /mnt/u/at
}

all() {
    pool $1
    fabrics $1
    union $1
}

modprobe -a fuse ext4 virtio_blk
ip link set lo up
need "a disk" sh -c 'mkfs.ext4 -q /dev/vdb && mount /dev/vdb /mnt'
uname -r
[ -z "$expected" ] || need "the kernel is the wanted one" says "^$expected" uname -r
if [ -e $switch ]; then
    check "switched on" names io_uring .
    echo 1 >$switch
    check "for the privileged only: root has it" names io_uring .
    echo 2 >$switch
    check "switched off: told with the reason" names epoll 'io_uring_disabled'
    check_refused "who insists on io_uring fails" $tsumugi list --engine io_uring
    all epoll
else
    check "what this kernel has is used" names '[a-z_]*' .
    all "$($tsumugi --version --verbose | sed -n 's/^engine \([a-z_]*\):.*/\1/p')"
    export TSUMUGI_ENGINE=epoll
    check "epoll for who insists" names epoll 'asked for'
    all epoll
fi
finish
