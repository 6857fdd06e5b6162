#!/bin/bash
# Runs on this machine: our host against the kernel's NVMe/TCP target in the guest (export.sh).
# Usage: peer.sh TSUMUGI PORT NQN SUM_PORT
# The subsystem has the serial number "kernelpeer", which confirms that it may be written to. What
# is on the kernel's disk is learnt from the kernel itself, on SUM_PORT.
set -u
. "$(dirname "$0")/check.sh"
tsumugi=$1 port=$2 nqn=$3 sum_port=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" "$check_output"' EXIT
target=(--traddr 127.0.0.1 --trsvcid "$port")
subsystem=("${target[@]}" --nqn "$nqn")
mib=1048576
serial=kernelpeer

nvme() {
    timeout 60 "$tsumugi" nvme "$@"
}

# read_range OFFSET LENGTH FILE [OPTION...]: reads bytes of the namespace into a file.
read_range() {
    local offset=$1 length=$2 file=$3
    shift 3
    nvme read "${subsystem[@]}" --offset "$offset" --size "$length" "$@" >"$file"
}

# write_range OFFSET FILE [OPTION...]: writes a file's bytes to the namespace.
write_range() {
    local offset=$1 file=$2
    shift 2
    nvme write "${subsystem[@]}" --offset "$offset" --destroy "$serial" "$@" <"$file"
}

# kernel_sum: the SHA-256 of the whole disk, as the guest's kernel reads it.
kernel_sum() {
    local connection
    exec {connection}<>"/dev/tcp/127.0.0.1/$sum_port" && read -r -u "$connection" sum _
    exec {connection}>&-
    echo "$sum"
}

# The disk as it has to be, kept beside it: export.sh's numbers, then zeros.
{ seq 1 200000 | head -c $mib; head -c $((255 * mib)) /dev/zero; } >"$scratch/disk"
sum_of_model() {
    sha256sum <"$scratch/disk" | cut -d ' ' -f 1
}

# exchange NAME OFFSET LENGTH [OPTION...]: writes random bytes and reads them back.
exchange() {
    local name=$1 offset=$2 length=$3
    shift 3
    head -c "$length" /dev/urandom >"$scratch/new"
    check "$name: write" write_range "$offset" "$scratch/new" "$@" || return
    check "$name: read" read_range "$offset" "$length" "$scratch/back" "$@" || return
    check "$name: the same bytes" cmp "$scratch/new" "$scratch/back"
    dd if="$scratch/new" of="$scratch/disk" bs=4096 seek=$((offset / 4096)) conv=notrunc \
        status=none
}

check "the disk starts as it has to be" equal "$(kernel_sum)" "$(sum_of_model)"
need "discover names the subsystem" says "$nqn" nvme discover "${target[@]}"
need "connect-test" nvme connect-test "${subsystem[@]}"
check_refused "connect-test to an unknown subsystem" \
    nvme connect-test "${target[@]}" --nqn nqn.2024-01.example:none
check "read what the kernel wrote" read_range 0 $mib "$scratch/first"
check "it is what the kernel wrote" cmp -n $mib "$scratch/first" "$scratch/disk"

exchange "one block" 0 4096
exchange "one MiB" $((4 * mib)) $mib
exchange "eight MiB" $((100 * mib)) $((8 * mib))
exchange "the last block" $((256 * mib - 4096)) 4096
exchange "header digest" $((16 * mib)) $mib --hdr-digest
exchange "data digest" $((17 * mib)) $mib --data-digest
exchange "both digests, two queues" $((18 * mib)) $((2 * mib)) --hdr-digest --data-digest \
    --nr-io-queues 2
# The kernel's ANA log page begins with its header whatever the offset is.
exchange "two paths" $((20 * mib)) $mib --path "127.0.0.1:$port" --iopolicy round-robin --fast-io-fail-tmo 20
check_refused "a read beyond the end" read_range $((256 * mib)) 4096 "$scratch/back"
check "the kernel has all that was written" equal "$(kernel_sum)" "$(sum_of_model)"
finish
