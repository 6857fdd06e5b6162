#!/bin/sh
# Runs in the guest: `tsumugi eval` on null_blk's queue modes: 0 (bios, no requests at all), 1 (one queue of
# requests, which kernels from 5.0 on do not have), 2 (a queue of requests for each CPU, with schedulers).
# Whether it works and is told; speed means nothing in an emulated machine.
# Usage: queues.sh TSUMUGI
. /root/check.sh
. /root/connect.sh
tsumugi=$1
config=/sys/kernel/config/nullb

# device NAME MODE: a device of 32 MiB of memory in this mode; its node is printed.
device() {
    mkdir $config/$1 && echo $2 >$config/$1/queue_mode && echo 32 >$config/$1/size &&
        echo 4096 >$config/$1/blocksize && echo 2 >$config/$1/submit_queues &&
        echo 1 >$config/$1/memory_backed && echo 1 >$config/$1/power || return
    # Newer kernels name the disk as its directory is named, older ones by number.
    for node in /dev/$1 /dev/nullb$(cat $config/$1/index); do
        [ -b $node ] && echo $node && return
    done
    return 1
}

# scheduler NODE: all that it may have, with the one in use in brackets where there is a choice.
scheduler() {
    cat /sys/block/$(basename $1)/queue/scheduler
}

# is_available LABEL: whether the report says nothing against it.
is_available() {
    ! grep -q "^\*Not available: $1: " /tmp/results/report.md
}

need "modules" modprobe -a null_blk mq-deadline
need "null_blk is configured at run time" test -d $config
bios=$(device bios 0)
need "mode 0 loads" test -b "$bios"
queues=$(device queues 2)
need "mode 2 loads" test -b "$queues"
check_refused "mode 1 is not in this kernel" device single 1
check "the kernel says why" sh -c "dmesg | grep -q 'legacy IO path is no longer available'"
before=$(scheduler $queues)
for node in $bios $queues; do
    verify "fio verifies $node" --filename=$node --size=8m --bsrange=4k-64k --rw=randwrite --iodepth=8
done

cat >/tmp/queues.toml <<END
name = "queues"
title = "Queue modes of null_blk"
question = "Does each mode work?"
engine = "rate"
file-size = "16MiB"
timing.run = "200ms"
timing.warm-up-rounds = 0
timing.looks = [6]
limits.time = "120s"
[factors.queue.bios]
kind = "block-device"
path = "$bios"
label = "mode 0"
[factors.queue.single]
kind = "block-device"
path = "/dev/nullb-of-mode-1"
label = "mode 1"
[factors.queue.none]
kind = "block-device"
path = "$queues"
scheduler = "none"
label = "mode 2, none"
[factors.queue.deadline]
kind = "block-device"
path = "$queues"
scheduler = "mq-deadline"
label = "mode 2, mq-deadline"
[[workload]]
name = "read"
rw = "randread"
bs = ["4KiB"]
jobs = [2]
depth = [4]
metrics = ["iops", "cpu-per-io"]
[[comparison]]
name = "deadline/none"
baseline = { queue = "none" }
other = { queue = "deadline" }
[[comparison]]
name = "bios/requests"
baseline = { queue = "none" }
other = { queue = "bios" }
[[comparison]]
name = "single/multi"
role = "queue"
baseline = { queue = "none" }
other = { queue = "single" }
END
check "an experiment runs on them" $tsumugi eval run /tmp/queues.toml --data /tmp --out /tmp/results
for label in "mode 0" "mode 2, none" "mode 2, mq-deadline"; do
    check "$label is measured" is_available "$label"
done
check "mode 1 is not available, with the reason" says "Not available: mode 1: .*/dev/nullb-of-mode-1" \
    cat /tmp/results/report.md
for name in deadline/none bios/requests; do
    check "$name has pairs" says "^| $name | read | .* | [2-6] | " cat /tmp/results/report.md
done
check "the scheduler is again what it was" equal "$(scheduler $queues)" "$before"
check "the report of several names them, too" $tsumugi eval report --out /tmp/all /tmp/results
check "with what was not available" grep -q "<li>mode 1: " /tmp/all/index.html
finish
