//! Completion status (base 4.2.3): status code type, status code and the retry bits.

use core::fmt;

/// Bit 14: the command will fail again if it is retried in the same subsystem.
const DNR: u16 = 1 << 14;
/// Bit 13: the Error Information log page has details.
const MORE: u16 = 1 << 13;

/// Status field of a completion without the phase tag (base figure 100): SC in bits 7:0, SCT in
/// 10:8, CRD in 12:11, More in 13, Do Not Retry in 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Status code type (base figure 101).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCodeType {
    /// 0h: possible for any command.
    Generic,
    /// 1h: the meaning depends on the command.
    CommandSpecific,
    /// 2h: the medium failed, or the data is not the expected one.
    MediaAndDataIntegrity,
    /// 3h: the path to the namespace failed; another may work.
    PathRelated,
    /// 7h: vendor specific.
    VendorSpecific,
    /// 4h to 6h: reserved.
    Reserved,
}

impl Status {
    /// Returns the status from the 15 bits above the phase tag; bit 15 is ignored.
    pub const fn from_raw(raw: u16) -> Self {
        Self(raw & 0x7fff)
    }

    /// Returns the 15 bits above the phase tag.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the status code, SC.
    pub const fn code(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// Returns the status code type, SCT.
    pub const fn code_type(self) -> StatusCodeType {
        match (self.0 >> 8) & 7 {
            0 => StatusCodeType::Generic,
            1 => StatusCodeType::CommandSpecific,
            2 => StatusCodeType::MediaAndDataIntegrity,
            3 => StatusCodeType::PathRelated,
            7 => StatusCodeType::VendorSpecific,
            _ => StatusCodeType::Reserved,
        }
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.is(Self::SUCCESS)
    }

    /// Whether `other` has the same type and code; the retry bits do not count.
    pub const fn is(self, other: Self) -> bool {
        self.0 & 0x7ff == other.0 & 0x7ff
    }

    /// Whether a retry of the command in the same subsystem will fail again.
    pub const fn is_do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether the Error Information log page has details.
    pub const fn has_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Returns Command Retry Delay, CRD: 0 for none, otherwise the index of the delay, CRDT1 to
    /// CRDT3.
    pub const fn retry_delay_index(self) -> u8 {
        ((self.0 >> 11) & 3) as u8
    }

    /// Returns the same status with Do Not Retry set.
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns the same status with More set.
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether the path failed and not the command (base 3.6.2: another controller of the same
    /// namespace may be tried).
    pub const fn is_path_error(self) -> bool {
        (self.0 >> 8) & 7 == 3
    }
}

macro_rules! statuses {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($text, " (", stringify!($value), ": SCT and SC).")]
                pub const $name: Self = Self($value);
            )*

            /// Returns the specification's name of type and code. The command specific codes 80h to
            /// 84h have one meaning for Connect and another for I/O commands; this returns the name
            /// for I/O, see [`Self::connect_name`].
            pub const fn name(self) -> Option<&'static str> {
                match self.0 & 0x7ff {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "Successful Completion";
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    ABORTED_POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0x006, "Internal Error";
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0x008, "Command Aborted due to SQ Deletion";
    FUSED_FAILED = 0x009, "Command Aborted due to Failed Fused Command";
    FUSED_MISSING = 0x00a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
    SGL_SEGMENT_INVALID = 0x00d, "Invalid SGL Segment Descriptor";
    SGL_COUNT_INVALID = 0x00e, "Invalid Number of SGL Descriptors";
    SGL_DATA_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    SGL_METADATA_LENGTH_INVALID = 0x010, "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    PRP_OFFSET_INVALID = 0x013, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x015, "Operation Denied";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0x01b, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0x01c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0x01d, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0x01e, "SGL Data Block Granularity Invalid";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x022, "Transient Transport Error";
    PROHIBITED_BY_LOCKDOWN = 0x023, "Command Prohibited by Command and Feature Lockdown";
    ADMIN_MEDIA_NOT_READY = 0x024, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x084, "Format In Progress";
    COMPLETION_QUEUE_INVALID = 0x100, "Completion Queue Invalid";
    INVALID_QUEUE_ID = 0x101, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 0x106, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 0x107, "Invalid Firmware Image";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    INVALID_FORMAT = 0x10a, "Invalid Format";
    INVALID_QUEUE_DELETION = 0x10c, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_PER_NAMESPACE = 0x10f, "Feature Not Namespace Specific";
    OVERLAPPING_RANGE = 0x114, "Overlapping Range";
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x115, "Namespace Insufficient Capacity";
    NAMESPACE_ID_UNAVAILABLE = 0x116, "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = 0x118, "Namespace Already Attached";
    NAMESPACE_IS_PRIVATE = 0x119, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 0x11a, "Namespace Not Attached";
    THIN_PROVISIONING_NOT_SUPPORTED = 0x11b, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 0x11c, "Controller List Invalid";
    INVALID_CONTROLLER_ID = 0x11f, "Invalid Controller Identifier";
    ANA_GROUP_ID_INVALID = 0x124, "ANA Group Identifier Invalid";
    ANA_ATTACH_FAILED = 0x125, "ANA Attach Failed";
    COMMAND_SET_NOT_SUPPORTED = 0x129, "I/O Command Set Not Supported";
    COMMAND_SET_NOT_ENABLED = 0x12a, "I/O Command Set Not Enabled";
    COMMAND_SET_COMBINATION_REJECTED = 0x12b, "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 0x12c, "Invalid I/O Command Set";
    CONFLICTING_ATTRIBUTES = 0x180, "Conflicting Attributes";
    INVALID_PROTECTION_INFORMATION = 0x181, "Invalid Protection Information";
    WRITE_TO_READ_ONLY_RANGE = 0x182, "Attempted Write to Read Only Range";
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x183, "Command Size Limit Exceeded";
    DISCOVERY_RESTART = 0x190, "Discover Restart";
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    WRITE_FAULT = 0x280, "Write Fault";
    UNRECOVERED_READ_ERROR = 0x281, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 0x282, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 0x283, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 0x284, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
    DEALLOCATED_BLOCK = 0x287, "Deallocated or Unwritten Logical Block";
    INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 0x303, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 0x360, "Controller Pathing Error";
    HOST_PATHING_ERROR = 0x370, "Host Pathing Error";
    ABORTED_BY_HOST = 0x371, "Command Aborted By Host";
}

/// Statuses of Connect (base figure 552); the numbers have another meaning for I/O commands.
impl Status {
    /// Connect Incompatible Format.
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = Self(0x180);
    /// Connect Controller Busy.
    pub const CONNECT_CONTROLLER_BUSY: Self = Self(0x181);
    /// Connect Invalid Parameters; dword 0 of the completion has the place, see
    /// [`ConnectInvalid`](crate::fabrics::ConnectInvalid).
    pub const CONNECT_INVALID_PARAMETERS: Self = Self(0x182);
    /// Connect Restart Discovery.
    pub const CONNECT_RESTART_DISCOVERY: Self = Self(0x183);
    /// Connect Invalid Host: this host may not use the subsystem.
    pub const CONNECT_INVALID_HOST: Self = Self(0x184);
    /// Invalid Queue Type, of Disconnect.
    pub const DISCONNECT_INVALID_QUEUE_TYPE: Self = Self(0x185);

    /// Returns the name of the status if the command was a Connect or Disconnect.
    pub const fn connect_name(self) -> Option<&'static str> {
        match self.0 & 0x7ff {
            0x180 => Some("Connect Incompatible Format"),
            0x181 => Some("Connect Controller Busy"),
            0x182 => Some("Connect Invalid Parameters"),
            0x183 => Some("Connect Restart Discovery"),
            0x184 => Some("Connect Invalid Host"),
            0x185 => Some("Disconnect Invalid Queue Type"),
            _ => self.name(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "status type {} code {:#04x}", (self.0 >> 8) & 7, self.code())?,
        }
        if self.is_do_not_retry() { f.write_str(" (do not retry)") } else { Ok(()) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x}: {self})", self.0)
    }
}
