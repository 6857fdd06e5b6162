#!/bin/sh
# Runs in the guest, on a kernel with soft-RoCE: a pool of two nodes whose data goes over RDMA. Needs a disk.
# Usage: rdma-pool.sh TSUMUGI
. /root/check.sh
tsumugi=$1
address=10.0.2.15
counters=/sys/class/infiniband/rxe0/ports/1/hw_counters
bytes=8388608

# up OPTION...: makes a pool.
up() {
    timeout 300 $tsumugi up --job guest --size 96M --device-dir /mnt/devices --ready-within 120s --no-restart "$@"
}

# refused PATTERN OPTION...: no pool comes up, the reason is told, and nothing is left.
refused() {
    refused_pattern=$1
    shift
    up "$@" >/tmp/refused 2>&1
    refused_status=$?
    cat /tmp/refused
    [ $refused_status = 1 ] && grep -q -e "$refused_pattern" /tmp/refused &&
        ! $tsumugi list | grep guest && ! grep -q fuse.tsumugi /proc/mounts
}

status() {
    timeout 120 $tsumugi status --job guest "$@"
}

down() {
    timeout 120 $tsumugi down --job guest
}

# is_well: whether everything lives and answers.
is_well() {
    status >/tmp/status
}

# process NODE: the number of its process.
process() {
    for process_entry in /proc/[0-9]*; do
        tr '\0' ' ' 2>/dev/null <$process_entry/cmdline | grep -q "tsumugi node .*/$1.toml" &&
            echo "${process_entry#/proc/}"
    done
}

# places: sets what is known of the pool: the mounts, and where node1 serves its device.
places() {
    status --json >/tmp/status
    one=/run/tsumugi/guest/mnt/node1 two=/run/tsumugi/guest/mnt/node2
    port=$(sed -n "s/.*\"address\": *\"$address:\([0-9]*\)\".*/\1/p" /tmp/status | head -n 1)
    nqn=$(sed -n 's/.*"subnqn": *"\([^"]*\)".*/\1/p' /tmp/status | head -n 1)
    cat /tmp/status
    [ -n "$port" ] && [ -n "$nqn" ] && [ -d $one ] && [ -d $two ]
}

# number NAME: the sum of this number over all devices of the pool.
number() {
    status --json | sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" | awk '{ sum += $1 } END { print sum + 0 }'
}

# packets: how many the device has sent.
packets() {
    cat $counters/sent_pkts
}

# moved BYTES PACKETS-BEFORE: whether so many bytes can have left in packets since then; each has 4096 bytes at most.
moved() {
    moved_now=$(packets)
    echo "$2 packets, then $moved_now; $1 bytes"
    [ $((moved_now - $2)) -ge $(($1 / 4096)) ]
}

# counts NAME BYTES: whether the targets have counted as much; they report it twice a second.
counts() {
    counts_wanted=$2 counts_tries=100
    until counts_now=$(number $1) && [ $counts_now -ge $counts_wanted ]; do
        counts_tries=$((counts_tries - 1))
        echo "$1 $counts_now, wanted $counts_wanted"
        [ $counts_tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# striped DIR: makes a directory whose files lie on both nodes.
striped() {
    mkdir $1 && $tsumugi stripe set --stripe-count -1 --stripe-size 1M $1
}

# same FILE FILE: the same bytes, the second read past all caches.
same() {
    timeout 200 dd if=$2 of=/tmp/read bs=1M iflag=direct && cmp $1 /tmp/read
}

# fails_in SECONDS COMMAND...: it fails, and not by the time.
fails_in() {
    fails_seconds=$1
    shift
    timeout $fails_seconds "$@"
    fails_status=$?
    echo "(status $fails_status)"
    [ $fails_status != 0 ] && [ $fails_status != 124 ]
}

has_fenced() {
    status --json >/tmp/status
    grep -q '"fenced": *[1-9]' /tmp/status
}

# keep_writing FILE: until a write fails; tells so in a file.
keep_writing() {
    while dd if=/dev/urandom of=$1 bs=256k count=16 conv=notrunc oflag=direct 2>/tmp/writer.error; do
        echo written >>/tmp/writer.done
    done
    echo failed >/tmp/writer.failed
}

has_gone() {
    ! grep -q fuse.tsumugi /proc/mounts && ! pidof tsumugi >/dev/null
}

modprobe -a fuse ext4 virtio_blk
ip link set lo up
ulimit -l unlimited
need "a disk" sh -c 'mkfs.ext4 -q /dev/vdb && mount /dev/vdb /mnt'
need "modprobe ib_uverbs" modprobe ib_uverbs

echo "-- the choice"
check "RDMA is refused for data that is encrypted" refused 'no encryption.*--plain-data' --local 2 --fabric rdma
check "without a device RDMA is refused, with what is missing" refused 'rdma_ucm\|RDMA device' \
    --local 2 --plain-data --fabric rdma
need "without a device auto makes a pool over TCP" up --local 2 --plain-data --fabric auto
check "status tells why" says 'over TCP: not all nodes have RDMA: .*\(rdma_ucm\|RDMA device\)' status
check "it goes down" down
for module in rdma_ucm rdma_rxe; do
    need "modprobe $module" modprobe $module
done
need "a device of soft-RoCE" rdma link add rxe0 type rxe netdev eth0
check "doctor tells of it" says 'rdma.*rxe0' sh -c "$tsumugi doctor --no-measure || true"
check "network namespaces have no RDMA" refused 'namespaces' --local 2 --plain-data --fabric rdma --netns

echo "-- data"
need "a pool over RDMA" up --local 2 --plain-data --fabric rdma
need "its places" places
check "status says RDMA, with the device" says 'over RDMA: all nodes have it: .*rxe0' status
check "status says that it is not encrypted" says 'NOT ENCRYPTED' status
check "status --json says rdma for both devices" \
    equal "$(grep -c '"transport": *"rdma"' /tmp/status)" 3
check "nodes are confined" sh -c '! grep -h "no Landlock" /run/tsumugi/guest/*.log'
check "no node listens over TCP" sh -c "! grep -i \"\$(printf ':%04X ' $port)\" /proc/net/tcp"
head -c $bytes /dev/urandom >/tmp/new
before=$(packets)
check "node1 writes a file" sh -c "cp /tmp/new $one/near && sync -f $one/near"
check "node2 reads it" same /tmp/new $two/near
check "it came over RDMA" moved $bytes $before
check "the target counts its bytes as remote" counts read_remote_bytes $bytes
check "a directory on both nodes" striped $one/both
before=$(packets)
check "node2 writes a file on both nodes" sh -c "cp /tmp/new $two/both/file && sync -f $two/both/file"
check "half of it went over RDMA" moved $((bytes / 2)) $before
check "the target counts its bytes as remote" counts written_remote_bytes $((bytes / 2))
check "node1 reads it" same /tmp/new $one/both/file
check "node2 reads it" same /tmp/new $two/both/file
check "fio verifies what it writes" timeout 200 fio --name=verify --directory=$two/both --size=16m --bsrange=4k-512k \
    --rw=randwrite --iodepth=8 --ioengine=libaio --direct=1 --verify=crc32c --do_verify=1 --verify_fatal=1 --eta=never
before=$(packets)
check "scrub finds nothing" timeout 200 $tsumugi scrub guest
check "it read over RDMA" moved $bytes $before
check "nothing was refused so far" equal "$(number refused)" 0

echo "-- strangers"
modprobe nvme-rdma
stranger="-t rdma -a $address -s $port"
check "discovery is refused" fails_in 100 nvme discover $stranger
check "connecting is refused" fails_in 100 nvme connect $stranger -n $nqn
check "connecting is refused to our host" fails_in 100 $tsumugi nvme id-ctrl $stranger -n $nqn
check "with a key of its own too" sh -c "$tsumugi nvme gen-dhchap-key --output /root/key &&
    ! timeout 100 nvme connect $stranger -n $nqn --dhchap-secret \"\$(cat /root/key)\""
check "no block device came of it" sh -c '! ls /dev/nvme*n*'
check "over TCP there is nobody" fails_in 100 nvme discover -t tcp -a $address -s $port
check "they were counted as refused" counts refused 2
check "the pool is well" is_well

echo "-- a session that is fenced"
check "node2 writes a file on both nodes" sh -c "cp /tmp/new $two/both/taken && sync -f $two/both/taken"
keep_writing $two/both/taken &
writer=$!
need "it goes on writing" wait_until test -e /tmp/writer.done
kill -STOP $(process node2)
check "the service has fenced its session" wait_until has_fenced
check "node1 still has its own data" same /tmp/new $one/near
check "node1 writes" sh -c "timeout 200 cp /tmp/new $one/after && sync -f $one/after"
kill -CONT $(process node2)
check "node2's writer gets an error" wait_until test -e /tmp/writer.failed
wait $writer
cat /tmp/writer.error
check "the pool is well again" wait_until is_well
check "what node1 wrote is as it was" same /tmp/new $one/after
check "node2 has it too, in a new session" same /tmp/new $two/after
check "node2 writes in it" sh -c "timeout 200 cp /tmp/new $two/both/again && sync -f $two/both/again"
check "node1 reads that" same /tmp/new $one/both/again

echo "-- a node that is killed"
check "before, node2 reads of node1" same /tmp/new $two/near
killed=$(process node1)
kill -9 $killed
check "a read of its data fails in time" fails_in 100 dd if=$two/near of=/dev/null bs=1M iflag=direct
check "node2 still writes" sh -c "timeout 100 cp /tmp/new $two/alone && sync -f $two/alone"
check "restart brings it back" timeout 200 $tsumugi restart --job guest --ready-within 120s
check "the pool is well" wait_until is_well
check "its data is there" wait_until same /tmp/new $two/near
check "it reads what was written meanwhile" same /tmp/new $one/alone
check "it goes down" down
check "nothing is left" wait_until has_gone

echo "-- nodes that are reached by a command"
cat >/tmp/reach <<'R'
#!/bin/sh
# As ssh, for this machine: options, --, the host, a command for a shell.
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
R
chmod +x /tmp/reach
cat >/tmp/hosts <<H
here name=a address=$address dir=/run/a mount=/run/mnt-a
here name=b address=$address dir=/run/b mount=/run/mnt-b
H
reach="--nodes /tmp/hosts --ssh /tmp/reach --remote-binary $tsumugi"
need "auto makes a pool over RDMA" says 'over RDMA: all nodes have it: a rxe0, b rxe0' \
    up $reach --plain-data --fabric auto
check "status says so" says 'over RDMA' status
before=$(packets)
check "a writes a file" sh -c "cp /tmp/new /run/mnt-a/file && sync -f /run/mnt-a/file"
check "b reads it" same /tmp/new /run/mnt-b/file
check "it came over RDMA" moved $bytes $before
check "it goes down" down
sed -i "/name=b/s/$address/127.0.0.1/" /tmp/hosts
check "a node without a device at its address is named" refused 'b (127.0.0.1): cannot listen' \
    $reach --plain-data --fabric rdma
check_refused "the kernel's log has no error" sh -c "dmesg | grep -i -E 'rxe[^ ]*:.*(error|fail)|kernel BUG|NULL pointer'"
finish
