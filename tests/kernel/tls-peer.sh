#!/bin/bash
# Runs on this machine: our host connects to the kernel's target in the guest (tls.sh) under TLS.
# Usage: tls-peer.sh TSUMUGI PORT NQN KEYS     KEYS is a directory with the keys' files
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

# identity KEY HOST [OPTION...]: the identity by which the kernel's keyring has a key.
identity() {
    "$tsumugi" nvme check-tls-key --keydata "$keys/$1" --hostnqn "$host-$2" --subsysnqn "$nqn" "${@:3}"
}

check_refused "the kernel's target refuses our host without TLS" as one
check_refused "and with a key that it does not know" as one --tls --tls-key "$keys/wrong"
check_refused "and with another key by a name that it knows" as refused --tls --tls-key "$keys/one" \
    --tls-key-identity "$(identity one refused)"
check "SHA-256, version 1" as one --tls --tls-key "$keys/one" \
    --tls-key-identity "$(identity one one --identity 1 --compat)" --nr-io-queues 2 --destroy kernelpeer
check "SHA-256, version 0" as older --tls --tls-key "$keys/old" --tls-compat \
    --tls-key-identity "$(identity old older)" --destroy kernelpeer
check "SHA-256, derived as RFC 8446 has it, and digests" as newest --tls --tls-key "$keys/new" \
    --hdr-digest --data-digest --destroy kernelpeer
finish
