#!/bin/bash
# Runs on this machine: our host generates TLS keys with the kernel's target in the guest (concat.sh).
# Usage: concat-peer.sh TSUMUGI PORT NQN KEYS     KEYS is a directory with the keys' files
set -u
. "$(dirname "$0")/check.sh"
tsumugi=$1 nqn=$3 keys=$4
host=nqn.2024-01.io.tsumugi:host
trap 'rm -f "$check_output"' EXIT
target=(-a 127.0.0.1 -s "$2" -n "$nqn" --connect-timeout 60)

# as HOST [OPTION...]: connects as this host, reads and writes.
as() {
    local name=$1
    shift
    timeout 200 "$tsumugi" nvme connect-test "${target[@]}" -q "$host-$name" \
        -I "bbbbbbbb-0000-4000-8000-00000000000${#name}" "$@"
}

check_refused "the kernel's target refuses another key" as one --dhchap-secret "$keys/wrong" --concat
check "one way" as one --dhchap-secret "$keys/one" --concat --nr-io-queues 2 --destroy kernelpeer
check "one way, and digests" as one --dhchap-secret "$keys/one" --concat --hdr-digest --data-digest --destroy kernelpeer
# Linux 7.3's target frees both challenges before it has the host's confirmation, and so generates no key.
check_refused "both ways, which the kernel's target cannot (if it can now: check it)" as three \
    --dhchap-secret "$keys/one" --dhchap-ctrl-secret "$keys/ctrl" --concat
finish
