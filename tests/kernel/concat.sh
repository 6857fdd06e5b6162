#!/bin/sh
# Runs in the guest: the kernel's host generates TLS keys with our target (secure channel concatenation), and the
# kernel's target is set up to do so with our host (concat-peer.sh). Handshakes are tlshd's.
# Usage: concat.sh ADDRESS PORT NQN PEER_PORT
# /root/keys has the keys of authentication that both sides know, as variables: one, ctrl, wrong.
. /root/check.sh
. /root/connect.sh
. /root/keys
address=$1 port=$2 nqn=$3 peer_port=$4
fabric="-t tcp -a $address -s $port"
host=nqn.2024-01.io.tsumugi:host

# id_of HOST: options that name the host.
id_of() {
    echo "-q $host-$1 -I aaaaaaaa-0000-4000-8000-00000000000${#1}"
}

# has_key: whether the kernel has a generated key of the host and the subsystem.
has_key() {
    grep -q 'NVMe1G0[12]' /proc/keys
}

# round_trip NAME: data is written and read, under TLS with a generated key.
round_trip() {
    check "$1: the kernel has a generated key" has_key
    check "$1: the controller has a TLS key" grep -q . "$(controller)/tls_key"
    check "$1: data is written and read" sh -c "head -c 1048576 /dev/urandom >/tmp/new &&
        dd if=/tmp/new of=$device bs=128k oflag=direct && dd if=$device bs=1M count=1 iflag=direct | cmp - /tmp/new"
}

echo "this kernel is $(uname -r)"
need "modprobe tls" modprobe tls
need "modprobe nvme-tcp" modprobe nvme-tcp
need "modprobe nvmet-tcp" modprobe nvmet-tcp
printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/etc/tlshd.conf
tlshd -s -c /etc/tlshd.conf >/tmp/tlshd.log 2>&1 &
tlshd=$!
need "tlshd runs" sh -c "sleep 1; kill -0 $tlshd || { cat /tmp/tlshd.log; false; }"

check_refused "our target refuses a proof that generates no key" \
    nvme connect $fabric -n $nqn $(id_of one) --dhchap-secret "$one"
check_refused "and one with another key" nvme connect $fabric -n $nqn $(id_of one) --dhchap-secret "$wrong" --concat
check_refused "and generating a key where none is asked for" \
    nvme connect $fabric -n $nqn $(id_of clear) --dhchap-secret "$one" --concat
connect $(id_of one) --dhchap-secret "$one" --concat --nr-io-queues 2
round_trip "one way"
verify "a load with checksums" --filename=$device --rw=randrw --bs=4k-256k --size=8M --iodepth=8
disconnect
connect $(id_of three) --dhchap-secret "$one" --dhchap-ctrl-secret "$ctrl" --concat --nr-io-queues 1
round_trip "both ways"
disconnect
connect $(id_of clear) --dhchap-secret "$one" --nr-io-queues 1
check "a host beside them reads in the clear" dd if=$device of=/dev/null bs=4k count=1 iflag=direct
disconnect

need "modprobe null_blk" modprobe null_blk nr_devices=1 gb=1 memory_backed=1 bs=4096
cd /sys/kernel/config/nvmet
mkdir subsystems/$nqn subsystems/$nqn/namespaces/1 ports/1
echo 0 >subsystems/$nqn/attr_allow_any_host
echo kernelpeer >subsystems/$nqn/attr_serial
echo /dev/nullb0 >subsystems/$nqn/namespaces/1/device_path
need "a namespace" sh -c "echo 1 >subsystems/$nqn/namespaces/1/enable"
# host_with NAME KEY [CTRL_KEY]: a host of the kernel's target.
host_with() {
    mkdir hosts/$host-$1
    need "the kernel's target has keys" sh -c "echo '$2' >hosts/$host-$1/dhchap_key"
    echo "hmac(sha256)" >hosts/$host-$1/dhchap_hash
    echo ffdhe2048 >hosts/$host-$1/dhchap_dhgroup
    [ -z "${3-}" ] || echo "$3" >hosts/$host-$1/dhchap_ctrl_key
    ln -s /sys/kernel/config/nvmet/hosts/$host-$1 subsystems/$nqn/allowed_hosts/
}
host_with one "$one"
host_with three "$one" "$ctrl"
echo tcp >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo 0.0.0.0 >ports/1/addr_traddr
echo $peer_port >ports/1/addr_trsvcid
need "a port with TLS, and without" sh -c "echo tls1.3 >ports/1/addr_tsas && echo 'not required' >ports/1/addr_treq"
need "a listening port" ln -s /sys/kernel/config/nvmet/subsystems/$nqn ports/1/subsystems/
[ $checks_failed = 0 ] || { sed 's/^/        | tlshd: /' /tmp/tlshd.log; dmesg | tail -n 60; }
finish
