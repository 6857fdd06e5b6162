#!/bin/sh
# Runs in the guest: exports a disk in memory with the kernel's NVMe/TCP target, and tells on
# another port what is on that disk, so that a host under test is judged by the kernel's own view.
# Usage: export.sh NQN SIZE_MIB PORT SUM_PORT
. /root/check.sh
nqn=$1 size_mib=$2 port=$3 sum_port=$4

need "modprobe null_blk" modprobe null_blk nr_devices=0
need "modprobe nvmet-tcp" modprobe nvmet-tcp

disk=/sys/kernel/config/nullb/nullb0
mkdir $disk
echo $size_mib >$disk/size
echo 4096 >$disk/blocksize
echo 1 >$disk/memory_backed
echo 1 >$disk/discard
need "a disk in memory" sh -c "echo 1 >$disk/power"
need "its content: the numbers from 1 on" \
    sh -c "seq 1 200000 | head -c 1048576 | dd of=/dev/nullb0 bs=64k conv=fsync"

cd /sys/kernel/config/nvmet
mkdir subsystems/$nqn subsystems/$nqn/namespaces/1
echo 1 >subsystems/$nqn/attr_allow_any_host
echo kernelpeer >subsystems/$nqn/attr_serial
echo /dev/nullb0 >subsystems/$nqn/namespaces/1/device_path
need "a namespace" sh -c "echo 1 >subsystems/$nqn/namespaces/1/enable"

mkdir ports/1
echo tcp >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo 0.0.0.0 >ports/1/addr_traddr
echo $port >ports/1/addr_trsvcid
need "a listening port" ln -s /sys/kernel/config/nvmet/subsystems/$nqn ports/1/subsystems/

# Past the page cache, where the target's own writes would not be seen.
cat >/run/sum <<'END'
#!/bin/sh
exec dd if=/dev/nullb0 bs=1M iflag=direct 2>/dev/null | sha256sum
END
chmod +x /run/sum
nc -ll -p $sum_port -e /run/sum >/dev/null 2>&1 </dev/null &
finish
