//! Opcodes of commands (base figures 90 and 141, NVM figure 20, base 6.1).
//!
//! Newtypes with constants rather than enums: an opcode from the wire may be any number, and a
//! `match` on constants handles the others in its default arm.

use core::fmt;

macro_rules! opcodes {
    ($(#[$meta:meta])* $type:ident { $($(#[$cm:meta])* $name:ident = $value:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $type(pub u8);

        impl $type {
            $(
                #[doc = $text]
                $(#[$cm])*
                pub const $name: Self = Self($value);
            )*

            /// Returns the command's name, if the opcode is known here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "opcode {:#04x}", self.0),
                }
            }
        }
    };
}

/// The opcode shared by all Fabrics commands (base 6); the FCTYPE byte distinguishes them.
pub const FABRICS: u8 = 0x7f;

opcodes! {
    /// Opcode of a command on the admin queue (base figure 141).
    AdminOpcode {
        DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
        CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02, "Get Log Page";
        DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
        CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0a, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0d, "Namespace Management";
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        FIRMWARE_DOWNLOAD = 0x11, "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DIRECTIVE_SEND = 0x19, "Directive Send";
        DIRECTIVE_RECEIVE = 0x1a, "Directive Receive";
        FABRICS = 0x7f, "Fabrics";
        FORMAT_NVM = 0x80, "Format NVM";
        SECURITY_SEND = 0x81, "Security Send";
        SECURITY_RECEIVE = 0x82, "Security Receive";
        SANITIZE = 0x84, "Sanitize";
        GET_LBA_STATUS = 0x86, "Get LBA Status";
    }
}

opcodes! {
    /// Opcode of a command of the NVM command set on an I/O queue (NVM figure 20).
    NvmOpcode {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0c, "Verify";
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        CANCEL = 0x18, "Cancel";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        COPY = 0x19, "Copy";
        FABRICS = 0x7f, "Fabrics";
    }
}

opcodes! {
    /// FCTYPE of a Fabrics command (base figure 545).
    FabricsType {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

/// The direction of a command's data (base figure 89: the low two bits of the opcode or FCTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// 00b: the command has no data.
    None,
    /// 01b: from the host to the controller.
    HostToController,
    /// 10b: from the controller to the host.
    ControllerToHost,
    /// 11b: both ways; no command here uses it.
    Both,
}

impl DataDirection {
    /// Returns the direction in the low bits of an opcode (or of a Fabrics command's FCTYPE).
    pub const fn of(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Both,
        }
    }
}
