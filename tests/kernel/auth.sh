#!/bin/sh
# Runs in the guest: the kernel's host proves itself to our target, and the kernel's target is set up so that
# our host has to prove itself (auth-peer.sh).
# Usage: auth.sh ADDRESS PORT NQN PEER_PORT
# /root/keys has the keys that both sides know, as variables: one, two_host, two_ctrl, wrong.
. /root/check.sh
. /root/connect.sh
. /root/keys
address=$1 port=$2 nqn=$3 peer_port=$4
fabric="-t tcp -a $address -s $port"
host=nqn.2024-01.io.tsumugi:host
id_one=aaaaaaaa-0000-4000-8000-000000000001 id_two=aaaaaaaa-0000-4000-8000-000000000002

# log_has PATTERN: whether the kernel's log has such a line.
log_has() {
    dmesg | grep -q -e "$1"
}

need "modprobe nvme-tcp" modprobe nvme-tcp
check_refused "our target refuses a host without a key" \
    nvme connect $fabric -n $nqn -q $host-one -I $id_one
check_refused "and one with another key" \
    nvme connect $fabric -n $nqn -q $host-one -I $id_one --dhchap-secret "$wrong"
check_refused "and one that is not named" nvme connect $fabric -n $nqn -q $host-none -I $id_one
check_refused "the kernel's host refuses our target with another key" nvme connect $fabric -n $nqn \
    -q $host-two -I $id_two --dhchap-secret "$two_host" --dhchap-ctrl-secret "$wrong"

connect -q $host-one -I $id_one --dhchap-secret "$one" --nr-io-queues 1
check "one way, without Diffie-Hellman" log_has 'authenticated with hash hmac(sha256) dhgroup null'
check "a block can be read" dd if=$device of=/dev/null bs=4k count=1 iflag=direct
disconnect

connect -q $host-two -I $id_two --dhchap-secret "$two_host" --dhchap-ctrl-secret "$two_ctrl" --nr-io-queues 2
check "both ways, with Diffie-Hellman" log_has 'authenticated with hash hmac(sha384) dhgroup ffdhe3072'
check "our target proved itself" log_has 'controller authenticated'
check "data is written and read" sh -c "head -c 65536 /dev/urandom >/tmp/new &&
    dd if=/tmp/new of=$device bs=64k oflag=direct && dd if=$device bs=64k count=1 iflag=direct | cmp - /tmp/new"
dmesg -c >/dev/null
check "the kernel's host authenticates again" sh -c "echo '$two_host' >$(controller)/dhchap_secret"
check "it has" wait_until log_has 'authenticated with hash'
check "data is still there" sh -c "dd if=$device bs=64k count=1 iflag=direct | cmp - /tmp/new"
disconnect
check "discovery, for which nvme-cli has no keys" says "^subnqn: *$nqn$" \
    nvme discover $fabric -q $host-one -I $id_one

need "modprobe null_blk" modprobe null_blk nr_devices=1 gb=1 memory_backed=1 bs=4096
need "modprobe nvmet-tcp" modprobe nvmet-tcp
cd /sys/kernel/config/nvmet
mkdir subsystems/$nqn subsystems/$nqn/namespaces/1 ports/1
echo 0 >subsystems/$nqn/attr_allow_any_host
echo kernelpeer >subsystems/$nqn/attr_serial
echo /dev/nullb0 >subsystems/$nqn/namespaces/1/device_path
need "a namespace" sh -c "echo 1 >subsystems/$nqn/namespaces/1/enable"

# host_with NAME HASH GROUP KEY [CTRL_KEY]: a host of the kernel's target.
host_with() {
    mkdir hosts/$host-$1
    need "the kernel's target has keys" sh -c "echo '$4' >hosts/$host-$1/dhchap_key"
    echo "hmac($2)" >hosts/$host-$1/dhchap_hash
    echo "$3" >hosts/$host-$1/dhchap_dhgroup
    [ -z "${5-}" ] || echo "$5" >hosts/$host-$1/dhchap_ctrl_key
    ln -s /sys/kernel/config/nvmet/hosts/$host-$1 subsystems/$nqn/allowed_hosts/
}
host_with one sha256 null "$one"
host_with two sha512 ffdhe2048 "$two_host" "$two_ctrl"
echo tcp >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo 0.0.0.0 >ports/1/addr_traddr
echo $peer_port >ports/1/addr_trsvcid
need "a listening port" ln -s /sys/kernel/config/nvmet/subsystems/$nqn ports/1/subsystems/
finish
