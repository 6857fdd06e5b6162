//! Completion queue entries (base 4.2).

use crate::{CommandId, QueueId, Status, U16, U64};

wire_struct! {
    /// Completion queue entry (base figure 97; fabrics response base figure 104).
    pub struct CompletionQueueEntry[16] {
        /// Command specific result: dword 0 in the low half, dword 1 in the high half.
        pub result: U64,
        /// SQ head pointer: how far the controller has consumed the queue, modulo its size;
        /// 0xffff if flow control is off.
        pub sqhd: U16,
        /// SQ identifier; reserved over fabrics.
        pub sqid: U16,
        /// Identifier of the completed command.
        pub cid: U16,
        /// Phase tag in bit 0 (reserved over fabrics), status in bits 15:1.
        pub sf: U16,
    }
}

impl CompletionQueueEntry {
    /// Returns an entry with result 0; over fabrics SQID and phase stay 0.
    pub fn new(cid: CommandId, sqhd: u16, status: Status) -> Self {
        Self {
            result: U64::new(0),
            sqhd: U16::new(sqhd),
            sqid: U16::new(0),
            cid: U16::new(cid.get()),
            sf: U16::new(status.get() << 1),
        }
    }

    /// Returns the same entry with dword 0 set.
    pub fn with_dword0(mut self, dword0: u32) -> Self {
        self.result = U64::new(u64::from(dword0));
        self
    }

    /// Returns the same entry with dwords 0 and 1 set.
    pub fn with_result(mut self, result: u64) -> Self {
        self.result = U64::new(result);
        self
    }

    /// Returns dword 0 of the result.
    pub fn dword0(&self) -> u32 {
        (self.result.get() & 0xffff_ffff) as u32
    }

    /// Returns dword 1 of the result.
    pub fn dword1(&self) -> u32 {
        (self.result.get() >> 32) as u32
    }

    /// Returns the identifier of the completed command.
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// Returns the queue pair that the command was submitted to; not meaningful over fabrics.
    pub fn queue_id(&self) -> QueueId {
        QueueId(self.sqid.get())
    }

    /// Returns the status of the command.
    pub fn status(&self) -> Status {
        Status::from_raw(self.sf.get() >> 1)
    }
}
