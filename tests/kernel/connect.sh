# What the scripts that use the kernel's NVMe/TCP host in the guest have in common; they set
# $fabric (nvme-cli's options for the target) and $nqn (the subsystem). Needs check.sh.

# Path of the controller connected to $nqn, empty if there is none.
controller() {
    for entry in /sys/class/nvme/nvme*; do
        [ "$(cat $entry/subsysnqn 2>/dev/null)" = "$nqn" ] && echo $entry && return
    done
}

# Name of the namespace's block device, empty if there is none.
block_name() {
    ls /sys/block | grep -m 1 -E '^nvme[0-9]+n[0-9]+$'
}

is_present() {
    [ -n "$(controller)" ] && [ "$(cat $(controller)/state)" = live ] &&
        [ -b /dev/$(block_name) ]
}

is_absent() {
    [ -z "$(controller)$(block_name)" ]
}

# verify NAME FIO-ARGUMENT...: fio writes with checksums and reads back.
verify() {
    verify_name=$1
    shift
    check "$verify_name" fio --name=verify --ioengine=libaio --direct=1 --verify=crc32c \
        --do_verify=1 --verify_fatal=1 --randrepeat=1 --eta=never "$@"
}

connect() {
    need "connect $*" nvme connect $fabric -n $nqn "$@"
    need "the namespace appears" wait_until is_present
    device=/dev/$(block_name) controller=/dev/$(basename $(controller))
}

disconnect() {
    check "disconnect" says 'disconnected 1 controller' nvme disconnect -n $nqn
    check "the namespace is gone" wait_until is_absent
}
