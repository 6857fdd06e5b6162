#!/bin/bash
# Runs on this machine: our host proves itself to the kernel's target in the guest (auth.sh), and demands the
# same of it.
# Usage: auth-peer.sh TSUMUGI PORT NQN KEYS     KEYS is a directory with the keys' files
set -u
. "$(dirname "$0")/check.sh"
tsumugi=$1 nqn=$3 keys=$4
host=nqn.2024-01.io.tsumugi:host
trap 'rm -f "$check_output"' EXIT
target=(-a 127.0.0.1 -s "$2" -n "$nqn" --connect-timeout 60)

# as HOST [OPTION...]: connects as this host, authenticates, authenticates again, reads and writes.
as() {
    local name=$1
    shift
    timeout 200 "$tsumugi" nvme connect-test "${target[@]}" -q "$host-$name" \
        -I "bbbbbbbb-0000-4000-8000-00000000000${#name}" "$@"
}

check_refused "the kernel's target refuses our host without a key" as one
check "the message names the option" says 'dhchap-secret' bash -c "! $(printf '%q ' "$tsumugi" nvme \
    connect-test "${target[@]}" -q "$host-one")"
check_refused "and with another key" as one -S "$keys/wrong"
check "one way, without Diffie-Hellman, and again" says 'authenticate again' as one -S "$keys/one"
check_refused "our host refuses the kernel's target with another key" \
    as two -S "$keys/two_host" -C "$keys/wrong"
check "both ways, with Diffie-Hellman, and again, and data" \
    as two -S "$keys/two_host" -C "$keys/two_ctrl" --nr-io-queues 2 --destroy kernelpeer
check_refused "a target that proves nothing is refused" as one -S "$keys/one" -C "$keys/two_ctrl"
finish
