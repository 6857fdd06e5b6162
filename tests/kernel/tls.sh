#!/bin/sh
# Runs in the guest: the kernel's host connects to our target under TLS, and the kernel's target is set up for our
# host under TLS (tls-peer.sh). Handshakes are tlshd's, which has its keys from the kernel's keyring.
# Usage: tls.sh ADDRESS PORT NQN PEER_PORT
# /root/keys has the keys that both sides know, as variables: one, two, old, wrong, secret; and of another key
# new_identity and new_psk, which no program in here has derived.
. /root/check.sh
. /root/connect.sh
. /root/keys
address=$1 port=$2 nqn=$3 peer_port=$4
fabric="-t tcp -a $address -s $port"
host=nqn.2024-01.io.tsumugi:host
discovery=nqn.2014-08.org.nvmexpress.discovery

# insert KEY HOST SUBSYSTEM VERSION: gives the kernel's keyring what nvme-cli derives from a key.
insert() {
    check "the key of $2 for an identity of version $4" \
        nvme check-tls-key --keydata "$1" --hostnqn "$host-$2" --subsysnqn "$3" --identity "$4" --insert
}

# id_of HOST: options that name the host.
id_of() {
    echo "-q $host-$1 -I aaaaaaaa-0000-4000-8000-00000000000${#1}"
}

# round_trip NAME: data is written and read, under TLS.
round_trip() {
    check "$1: the controller has a TLS key" grep -q . "$(controller)/tls_key"
    check "$1: data is written and read" sh -c "head -c 1048576 /dev/urandom >/tmp/new &&
        dd if=/tmp/new of=$device bs=128k oflag=direct && dd if=$device bs=1M count=1 iflag=direct | cmp - /tmp/new"
}

need "modprobe tls" modprobe tls
need "modprobe nvme-tcp" modprobe nvme-tcp
need "modprobe nvmet-tcp" modprobe nvmet-tcp
printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/etc/tlshd.conf
tlshd -s -c /etc/tlshd.conf >/tmp/tlshd.log 2>&1 &
tlshd=$!
need "tlshd runs" sh -c "sleep 1; kill -0 $tlshd || { cat /tmp/tlshd.log; false; }"

insert "$one" one $nqn 1
insert "$one" one $discovery 1
insert "$two" three $nqn 1
insert "$old" older $nqn 0
insert "$wrong" refused $nqn 0
keyring=$(awk '/\.nvme:/ { print $1 }' /proc/keys)
check "a key that was derived elsewhere" sh -c "echo $new_psk | xxd -r -p |
    keyctl padd psk '$new_identity' $((0x$keyring))"

check_refused "our target refuses a host without TLS" nvme connect $fabric -n $nqn $(id_of one)
check_refused "and one without a key" nvme connect $fabric -n $nqn $(id_of nobody) --tls
check_refused "and one with another key" nvme connect $fabric -n $nqn $(id_of refused) --tls

connect $(id_of one) --tls --nr-io-queues 2
round_trip "SHA-256, version 1"
disconnect
check "discovery under TLS" says "sectype: *tls13" nvme discover $fabric $(id_of one) --tls
check_refused "TLS alone is not enough where a proof is asked for" nvme connect $fabric -n $nqn $(id_of three) --tls
connect $(id_of three) --tls --dhchap-secret "$secret" --nr-io-queues 1
round_trip "TLS and a proof"
disconnect
connect $(id_of older) --tls --nr-io-queues 1
round_trip "SHA-256, version 0"
disconnect
connect $(id_of newest) --tls --nr-io-queues 1
round_trip "SHA-256, derived as RFC 8446 has it"
verify "a load with checksums" --filename=$device --rw=randrw --bs=4k-256k --size=8M --iodepth=8
disconnect

need "modprobe null_blk" modprobe null_blk nr_devices=1 gb=1 memory_backed=1 bs=4096
cd /sys/kernel/config/nvmet
mkdir subsystems/$nqn subsystems/$nqn/namespaces/1 ports/1
echo 1 >subsystems/$nqn/attr_allow_any_host
echo kernelpeer >subsystems/$nqn/attr_serial
echo /dev/nullb0 >subsystems/$nqn/namespaces/1/device_path
need "a namespace" sh -c "echo 1 >subsystems/$nqn/namespaces/1/enable"
echo tcp >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo 0.0.0.0 >ports/1/addr_traddr
echo $peer_port >ports/1/addr_trsvcid
need "a port that requires TLS" sh -c "echo tls1.3 >ports/1/addr_tsas && echo required >ports/1/addr_treq"
need "a listening port" ln -s /sys/kernel/config/nvmet/subsystems/$nqn ports/1/subsystems/
[ $checks_failed = 0 ] || sed 's/^/        | tlshd: /' /tmp/tlshd.log
finish
