#!/bin/sh
# Runs in the guest: `tsumugi nvme attach` takes the kernel's host where there is one, and detaches it;
# `tsumugi eval` says whose host its remote condition was.
# Usage: attach.sh TSUMUGI ADDRESS PORT NQN UUID
# UUID names the namespace, which confirms that it may be written to.
. /root/check.sh
. /root/connect.sh
tsumugi=$1 address=$2 port=$3 nqn=$4 uuid=$5
target="-a $address -s $port -n $nqn"

is_attached() {
    [ -s /tmp/attached ] || ! kill -0 $attach_pid 2>/dev/null
}

# attach OPTION...: attaches in the background; sets attach_pid, and file to what is attached.
attach() {
    rm -f /tmp/attached    # of an attach before
    $tsumugi nvme attach $target --json "$@" >/tmp/attached 2>/tmp/said &
    attach_pid=$!
    wait_until is_attached
    cat /tmp/said
    file=$(sed 's/.*"file":"\([^"]*\)".*/\1/' /tmp/attached)
    [ -e "$file" ]
}

# ends SIGNAL: whether the attached process ends well on a signal.
ends() {
    kill -$1 $attach_pid
    wait $attach_pid
}

# sum: of what is attached, past every cache.
sum() {
    dd if=$file bs=1M count=8 iflag=direct 2>/dev/null | sha256sum
}

need "attach loads the kernel's module" attach --destroy $uuid
check "it says that it is the kernel's host" says "block device of the kernel's NVMe/TCP host (Linux" \
    cat /tmp/attached
check "the block device is the controller's" equal $file /dev/$(block_name)
verify "fio verifies" --filename=$file --size=8m --bsrange=4k-128k --rw=randwrite --iodepth=8
written=$(sum)
check "attach ends on SIGTERM" ends TERM
check "the controller is gone" wait_until is_absent
check_refused "detaching what is not attached" $tsumugi nvme detach $target

modprobe fuse
mkdir /tmp/mount
need "attach takes our own host when it is asked to" attach --engine own --mount /tmp/mount
check "it says that it is ours" says 'file through FUSE .* on our own' cat /tmp/attached
check "the bytes are those that the kernel's host wrote" equal "$written" "$(sum)"
check "the kernel's host has nothing" is_absent
check "it ends on SIGTERM, too" ends TERM

need "attach without consent to write" attach
check_refused "writing without consent" dd if=/dev/zero of=$file bs=4k count=1 oflag=direct
check "nothing was written" equal "$written" "$(sum)"
check "it ends on SIGINT" ends INT
check_refused "consent that names another namespace" attach --destroy wrong
check "nothing stays attached" is_absent

need "attach for a file system" attach --destroy $uuid
need "mkfs.ext4 and mount" sh -c "mkfs.ext4 -q -F $file && mount -t ext4 $file /mnt"
kill -TERM $attach_pid
check "a mounted device is not taken away" wait_until grep -q 'is in use' /tmp/said
check "it is there still" is_present
check "umount" umount /mnt
check "then it ends" ends TERM
need "attach again" attach --destroy $uuid
kill -KILL $attach_pid
wait $attach_pid 2>/dev/null
check "a killed attach leaves its controller" is_present
check "detach ends it" says '^1 controllers' $tsumugi nvme detach $target
check "then it is gone" wait_until is_absent

cat >/tmp/attach.toml <<'END'
name = "attach"
title = "Attach"
question = "Whose host is it?"
engine = "fio"
file-size = "8MiB"
timing.run = "100ms"
timing.warm-up-rounds = 0
timing.looks = [6]
limits.time = "20s"
factors.storage.local.kind = "directory"
factors.storage.remote = { kind = "target", backing = "memory" }
[[workload]]
name = "read"
rw = "randread"
bs = ["4KiB"]
jobs = [1]
metrics = ["iops"]
[[comparison]]
name = "R/L"
baseline = { storage = "local" }
other = { storage = "remote" }
END
check "an experiment runs on it" $tsumugi eval run /tmp/attach.toml --data /tmp --out /tmp/results
check "its report says whose host it was" \
    grep -q "remote: block device of the kernel's NVMe/TCP host (Linux" /tmp/results/report.md
check "nothing of it stays attached" is_absent
finish
