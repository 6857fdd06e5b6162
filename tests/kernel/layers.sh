#!/bin/sh
# Runs in the guest: `tsumugi eval` on containers of each scheme that a kernel may lack: thin snapshots of the
# device mapper (dm-thin) and snapshots on btrfs; beside overlayfs and our union.
# Whether they work, how many bytes they store for a byte written, and that nothing is left; speed means nothing
# in an emulated machine. Needs a disk of 2 GiB.
# Usage: layers.sh TSUMUGI
. /root/check.sh
tsumugi=$1
results=/data/results
schemes="overlay union-keep btrfs-snapshot thin-snapshot"

# is_available LABEL: whether the report says nothing against it.
is_available() {
    ! grep "^\*Not available: $1: " $results/report.md
}

# values NAME SCHEME: the samples of this name under a condition, one line a round.
values() {
    awk -F, -v name="$1" -v condition="storage=$2" '
        { gsub(/"[^"]*"/, "quoted") }
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        $column["condition"] == condition && column[name] && $column[name] != "" { print $column[name] }
    ' $results/results.csv
}

# stores_per_byte SCHEME LEAST MOST: what its device or its upper directories take for a byte written.
stores_per_byte() {
    values upper_bytes_per_byte "$1" >/tmp/stored
    [ -s /tmp/stored ] || values copy_up_device_bytes_per_byte "$1" >/tmp/stored
    cat /tmp/stored
    [ -s /tmp/stored ] && awk -v least="$2" -v most="$3" '$1 < least || $1 > most { exit 1 }' /tmp/stored
}

# is_left: what an experiment left behind.
is_left() {
    dmsetup ls | grep tsumugi || losetup --list --noheadings | grep . || grep " /data/" /proc/self/mounts ||
        ls -d /data/.tsumugi* /data/tsumugi*
}

need "modules" modprobe -a loop ext4 btrfs overlay fuse dm-thin-pool
need "a file system" sh -c "mkfs.ext4 -q /dev/vdb && mkdir /data && mount /dev/vdb /data"

cat >/tmp/layers.toml <<END
name = "layers"
title = "Containers on what a kernel may lack"
question = "Does each scheme work?"
engine = "copyup"
file-size = "4MiB"
timing.run = "100ms"
timing.warm-up-rounds = 0
timing.looks = [6]
limits.time = "300s"
[[workload]]
name = "files"
items = 16
jobs = [2]
metrics = ["copy-up-rate", "steady-rate"]
END
for scheme in $schemes; do
    printf '[factors.storage.%s]\nkind = "layers"\nscheme = "%s"\n' $scheme $scheme >>/tmp/layers.toml
    [ $scheme = overlay ] || printf '%s\n' "[[comparison]]" "name = \"$scheme / overlay\"" \
        'role = "copy-up"' 'baseline = { storage = "overlay" }' \
        "other = { storage = \"$scheme\" }" >>/tmp/layers.toml
done
check "an experiment runs on them" $tsumugi eval run /tmp/layers.toml --data /data --out $results
for scheme in $schemes; do
    check "$scheme is measured" is_available $scheme
    check "$scheme has first writes of each round" \
        equal "$(values copy-up-rate $scheme | awk '$1 > 0' | wc -l)" 6
    [ $scheme = overlay ] || check "$scheme has pairs" \
        says "^| $scheme / overlay (at risk: none) | files | .* | [2-6] | " cat $results/report.md
done
# Files have a quarter of a megabyte on average, and 4 KiB are written to each; a pool's block has 64 KiB.
check "overlay stores whole files" stores_per_byte overlay 30 2000
check "union-keep stores what is written" stores_per_byte union-keep 1 25
check "thin-snapshot stores blocks" stores_per_byte thin-snapshot 1 60
check_refused "nothing is left" is_left
finish
