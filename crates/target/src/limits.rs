//! All bounds on what a peer can request, with their defaults, in one place.

use nvme::ControllerId;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Size of the receive buffer of an I/O queue pair in bytes.
pub(crate) const RECEIVE_BYTES: usize = 256 << 10;
/// Size in bytes of the receive buffer of any other connection, which any peer can open: more than
/// the longest PDU that such a connection receives as a whole.
pub(crate) const RECEIVE_BYTES_FIRST: usize = 16 << 10;
/// Memory of a connection in addition to its buffers, in bytes, rounded up: 26 KiB were measured
/// for a controller.
const CONNECTION_BYTES: usize = 32 << 10;
/// Memory of a command in addition to its data, in bytes, rounded up.
const COMMAND_BYTES: usize = 512;

/// Maximum number of source ranges of one Copy (MSRC + 1). Their list fits into a capsule.
pub(crate) const COPY_RANGES_MAX: u16 = 128;

/// Memory of an entry of a queue over RDMA in addition to data, in bytes: room for a command, and
/// for four messages with their records.
const RDMA_ENTRY_BYTES: usize = 64 + 4 * (64 + 64);
/// Number of commands that a connection over RDMA has room for before it is a queue pair.
const RDMA_COMMANDS_FIRST: usize = 2;

/// The most memory that a target's connections can use. The kernel allocates memory at the first
/// access, so an idle queue pair uses a small part of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCost {
    /// Bytes of a connection that is not an I/O queue pair.
    pub new_connection_bytes: usize,
    /// Bytes of an I/O queue pair whose queue is full of commands with data in their capsules.
    pub io_queue_pair_bytes: usize,
    /// Bytes of the data of all commands outside of capsules.
    pub data_bytes: usize,
    /// Total bytes at the maximum number of connections.
    pub bytes: usize,
}

/// Bounds and parameters of a target's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections of all hosts. At most a quarter of them may be connections
    /// that are not queue pairs yet; the oldest of these ends for a new one. One peer may have
    /// three quarters (see [`Entrance`](reactor::net::Entrance)). Further connections are closed as
    /// soon as they are accepted.
    pub connections_max: usize,
    /// Maximum number of controllers, over all subsystems. Each takes one connection, so this bound
    /// too leaves room for others.
    pub controllers_max: usize,
    /// The smallest and the largest controller identifier, within 1 … 65519. Targets that export
    /// the same subsystem need disjoint ranges: hosts refuse a second controller with the same
    /// identifier.
    pub controller_ids: RangeInclusive<u16>,
    /// Maximum number of I/O queue pairs of one controller.
    pub io_queues_max: u16,
    /// Maximum number of entries of an I/O submission queue (CAP.MQES + 1), 2 … 4096.
    pub queue_entries_max: u16,
    /// Maximum number of entries of an admin submission queue, 2 … 4096.
    pub admin_queue_entries_max: u16,
    /// Maximum number of Asynchronous Event Requests that a controller holds (AERL + 1).
    pub async_events_max: u8,
    /// Maximum number of outstanding Abort commands (ACL + 1). They are answered at once, so this
    /// is never reached.
    pub aborts_max: u8,
    /// Largest transfer of one command in bytes: a power of two times 4 KiB (MDTS).
    pub transfer_bytes_max: u32,
    /// Most bytes that one Write Zeroes clears or one Verify reads: a power of two times 4 KiB (WZSL,
    /// VSL).
    pub zero_bytes_max: u32,
    /// Maximum number of ranges of one Dataset Management command that deallocates (DMRL).
    pub deallocate_ranges_max: u8,
    /// Maximum number of blocks of one of these ranges (DMRSL). All ranges of a command may have
    /// this size (DMSL), because Linux ignores a smaller limit for their sum.
    pub deallocate_range_blocks_max: u32,
    /// Most in-capsule data of an I/O command in bytes, a multiple of 16 (IOCCSZ): 0 … 1 MiB less
    /// the other content of the receive buffer.
    pub in_capsule_data_bytes: u32,
    /// MAXH2CDATA: most data of one `H2CData` PDU in bytes.
    pub h2c_data_bytes_max: u32,
    /// Most data of one `C2HData` PDU in bytes.
    pub c2h_data_bytes_max: u32,
    /// Buffer memory for the data of one connection's commands; further commands wait.
    pub data_bytes_in_flight_max: usize,
    /// Buffer memory for the data of all connections' commands together; half of it is reserved for
    /// connections that have none yet.
    pub data_bytes_total_max: usize,
    /// Output in bytes that waits to be sent, above which a connection stops receiving.
    pub output_bytes_max: usize,
    /// Time from accept to a successful Connect.
    pub handshake: Duration,
    /// Time in which a send must end, counted from its start. Also the time in which a connection
    /// with commands that wait for data must receive some.
    pub send: Duration,
    /// The same time while other connections wait for memory.
    pub send_when_short: Duration,
    /// Time without a command after which the target drops a discovery controller without keep
    /// alive.
    pub discovery_idle: Duration,
    /// Longest keep alive timeout that a host may request.
    pub keep_alive_max: Duration,
    /// Whether hosts that request header digests get them.
    pub allows_header_digest: bool,
    /// Whether hosts that request data digests get them.
    pub allows_data_digest: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            controllers_max: 1024,
            controller_ids: 1..=ControllerId::MAX.get(),
            io_queues_max: 64,
            queue_entries_max: 128,
            admin_queue_entries_max: 32,
            async_events_max: 4,
            aborts_max: 4,
            transfer_bytes_max: 1 << 20,
            zero_bytes_max: 32 << 20,
            deallocate_ranges_max: 64,
            deallocate_range_blocks_max: 1 << 22,
            in_capsule_data_bytes: 8192,
            h2c_data_bytes_max: 1 << 20,
            c2h_data_bytes_max: 1 << 20,
            data_bytes_in_flight_max: 32 << 20,
            data_bytes_total_max: 256 << 20,
            output_bytes_max: 8 << 20,
            handshake: Duration::from_secs(10),
            send: Duration::from_secs(30),
            send_when_short: Duration::from_secs(5),
            discovery_idle: Duration::from_mins(2),
            keep_alive_max: Duration::from_mins(10),
            allows_header_digest: true,
            allows_data_digest: true,
        }
    }
}

impl Limits {
    /// Returns MDTS: `transfer_bytes_max` as a power of two of 4 KiB pages.
    pub fn mdts(&self) -> u8 {
        (self.transfer_bytes_max / 4096).max(1).ilog2() as u8
    }

    /// Returns WZSL: `zero_bytes_max` as a power of two of 4 KiB pages.
    pub fn wzsl(&self) -> u8 {
        (self.zero_bytes_max / 4096).max(1).ilog2() as u8
    }

    /// Returns DMSL: the blocks of all ranges of one Dataset Management command.
    pub fn dmsl(&self) -> u64 {
        u64::from(self.deallocate_ranges_max) * u64::from(self.deallocate_range_blocks_max)
    }

    /// Returns MCL: the blocks that one Copy copies. All of them are read before the first is
    /// written, so they are bounded as a transfer is.
    pub fn copy_blocks_max(&self, block_shift: u32) -> u32 {
        (self.transfer_bytes_max >> block_shift.min(31)).max(1)
    }

    /// Returns IOCCSZ: the I/O command capsule in units of 16 bytes.
    pub fn ioccsz(&self) -> u32 {
        (nvme::SubmissionQueueEntry::BYTES as u32 + self.in_capsule_data_bytes) / 16
    }

    /// Returns the memory that these limits cost over TCP, without the memory of namespaces.
    pub fn memory(&self) -> MemoryCost {
        self.memory_with(RECEIVE_BYTES_FIRST, RECEIVE_BYTES)
    }

    /// Returns the memory that these limits cost over RDMA, without the adapter's own queues. A
    /// command has room for its data before it arrives, and there is no receive buffer.
    pub fn rdma_memory(&self) -> MemoryCost {
        let (entries, data) =
            (usize::from(self.queue_entries_max), self.in_capsule_data_bytes as usize);
        let places = entries * RDMA_ENTRY_BYTES;
        self.memory_with(places + RDMA_COMMANDS_FIRST * data, places + entries * data)
    }

    /// Returns the memory with these sizes for receiving, before a connection is a queue pair and
    /// as an I/O queue pair.
    fn memory_with(&self, first_bytes: usize, io_bytes: usize) -> MemoryCost {
        let entries = usize::from(self.queue_entries_max);
        let commands = entries * (COMMAND_BYTES + self.in_capsule_data_bytes as usize);
        let io_queue_pair_bytes = io_bytes + CONNECTION_BYTES + commands;
        let new_connection_bytes = first_bytes + CONNECTION_BYTES;
        let admins = self.controllers_max.min(self.connections_max);
        let others = self.connections_max - admins;
        // A controller without I/O queue pairs costs less. So the most memory is used by the fewest
        // controllers that can have all the queue pairs.
        let with_queues = (1 + usize::from(self.io_queues_max)) * admins;
        let io_queues = if self.connections_max <= with_queues {
            self.connections_max
                - self.connections_max.div_ceil(1 + usize::from(self.io_queues_max))
        } else {
            others.min(admins * usize::from(self.io_queues_max))
        };
        let few = self.connections_max - io_queues;
        MemoryCost {
            new_connection_bytes,
            io_queue_pair_bytes,
            data_bytes: self.data_bytes_total_max,
            bytes: few * new_connection_bytes
                + io_queues * io_queue_pair_bytes
                + self.data_bytes_total_max,
        }
    }

    /// Returns the fault of these values, if there is one.
    pub fn fault(&self) -> Option<&'static str> {
        let (first, last) = (*self.controller_ids.start(), *self.controller_ids.end());
        if first == 0 || last > ControllerId::MAX.get() || first > last {
            return Some("controller identifiers must be a range within 1 to 65519");
        }
        let queue = 2..=4096;
        if !queue.contains(&self.queue_entries_max) {
            return Some("queue_entries_max must be 2 to 4096");
        }
        if !queue.contains(&self.admin_queue_entries_max) {
            return Some("admin_queue_entries_max must be 2 to 4096");
        }
        if !self.transfer_bytes_max.is_power_of_two() || self.transfer_bytes_max < 4096 {
            return Some("transfer_bytes_max must be a power of two, at least 4096");
        }
        if self.transfer_bytes_max > 64 << 20 {
            return Some("transfer_bytes_max must be at most 64 MiB");
        }
        // 0 pages would mean "no limit".
        if !self.zero_bytes_max.is_power_of_two() || self.zero_bytes_max < 8192 {
            return Some("zero_bytes_max must be a power of two, at least 8192");
        }
        if self.in_capsule_data_bytes > 64 << 10 || !self.in_capsule_data_bytes.is_multiple_of(16) {
            return Some("in_capsule_data_bytes must be a multiple of 16, at most 64 KiB");
        }
        if self.h2c_data_bytes_max < 4096 || !self.h2c_data_bytes_max.is_multiple_of(4) {
            return Some("h2c_data_bytes_max must be a multiple of 4, at least 4096");
        }
        if self.c2h_data_bytes_max < 4096 {
            return Some("c2h_data_bytes_max must be at least 4096");
        }
        if self.data_bytes_in_flight_max < self.transfer_bytes_max as usize {
            return Some("data_bytes_in_flight_max must be at least transfer_bytes_max");
        }
        if self.data_bytes_total_max < 4 * self.transfer_bytes_max as usize {
            return Some("data_bytes_total_max must be at least four times transfer_bytes_max");
        }
        let is_empty = self.async_events_max == 0
            || self.aborts_max == 0
            || self.connections_max == 0
            || self.controllers_max == 0
            || self.deallocate_ranges_max == 0
            || self.deallocate_range_blocks_max == 0
            || self.io_queues_max == 0;
        is_empty.then_some("every count must be at least 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the memory bound counts as many I/O queue pairs as the connections and controllers
    /// allow.
    #[test]
    fn memory_is_that_of_the_most_queue_pairs() {
        let of = |connections_max, controllers_max, io_queues_max| {
            let limits =
                Limits { connections_max, controllers_max, io_queues_max, ..Limits::default() };
            let memory = limits.memory();
            let queues =
                memory.bytes - memory.data_bytes - connections_max * memory.new_connection_bytes;
            queues / (memory.io_queue_pair_bytes - memory.new_connection_bytes)
        };
        assert_eq!(of(1, 1, 64), 0, "a controller has an admin queue pair first");
        assert_eq!(of(65, 1024, 64), 64);
        assert_eq!(of(66, 1024, 64), 64);
        assert_eq!(of(100, 2, 4), 8, "controllers are short");
        assert_eq!(of(10, 2, 4), 8);
        assert_eq!(of(1024, 1024, 64), 1024 - 16);
    }

    /// Goal: over RDMA a connection costs the data of two commands until it is a queue pair, then
    /// the data of all commands.
    #[test]
    fn memory_over_rdma_is_that_of_posted_receives() {
        let limits = Limits::default();
        let (tcp, rdma) = (limits.memory(), limits.rdma_memory());
        assert_eq!(rdma.new_connection_bytes, (72 + 2 * 8 + 32) << 10);
        assert_eq!(rdma.io_queue_pair_bytes - tcp.io_queue_pair_bytes, (72 + 128 * 8 - 256) << 10);
        assert_eq!(rdma.data_bytes, tcp.data_bytes);
    }
}
