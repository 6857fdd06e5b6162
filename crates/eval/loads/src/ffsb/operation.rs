//! FFSB's operations and the system calls that it times, in its own order and words.

use serde::{Deserialize, Serialize};

/// What a thread does to one file, chosen at random by weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads `read_size` from a random place on, or in random blocks.
    Read,
    /// Reads all of the file.
    Readall,
    /// Overwrites `write_size` from a random place on, or random blocks; never makes the file larger.
    Write,
    /// Makes and writes a new file.
    Create,
    /// Writes `write_size` at the end.
    Append,
    /// Removes the file.
    Delete,
    /// Makes two directories, removes one, renames one.
    Metaop,
    /// Makes a directory beside the files.
    Createdir,
    /// Looks at the file.
    Stat,
    /// Overwrites all of the file.
    Writeall,
    /// The same with fsync.
    WriteallFsync,
    /// Opens and closes the file.
    OpenClose,
    /// `write` with fsync.
    WriteFsync,
    /// `create` with fsync.
    CreateFsync,
    /// `append` with fsync.
    AppendFsync,
}

/// What an operation does with data, for throughputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
    /// Neither.
    None,
}

impl Operation {
    /// How many there are.
    pub const COUNT: usize = 15;

    /// All of them in FFSB's order, with its names; a weight's key is the name with `_weight`.
    pub const ALL: [(&'static str, Self); Self::COUNT] = [
        ("read", Self::Read),
        ("readall", Self::Readall),
        ("write", Self::Write),
        ("create", Self::Create),
        ("append", Self::Append),
        ("delete", Self::Delete),
        ("metaop", Self::Metaop),
        ("createdir", Self::Createdir),
        ("stat", Self::Stat),
        ("writeall", Self::Writeall),
        ("writeall_fsync", Self::WriteallFsync),
        ("open_close", Self::OpenClose),
        ("write_fsync", Self::WriteFsync),
        ("create_fsync", Self::CreateFsync),
        ("append_fsync", Self::AppendFsync),
    ];

    /// Its place in [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        self as usize
    }

    /// FFSB's name.
    pub fn name(self) -> &'static str {
        Self::ALL[self.index()].0
    }

    /// What it does with data.
    pub fn direction(self) -> Direction {
        match self {
            Self::Read | Self::Readall => Direction::Read,
            Self::Delete | Self::Metaop | Self::Createdir | Self::Stat | Self::OpenClose => {
                Direction::None
            }
            _ => Direction::Write,
        }
    }

    /// Whether a file or directory that was there is another one afterwards.
    pub fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Readall | Self::Stat | Self::OpenClose)
    }

    /// Whether file systems may be aged with it.
    pub fn ages(self) -> bool {
        use Operation::{Append, AppendFsync, Create, CreateFsync, Delete};
        matches!(self, Create | Append | Delete | CreateFsync | AppendFsync)
    }

    /// Whether FFSB 5 has it.
    pub fn is_old(self) -> bool {
        self.index() <= Self::Metaop.index()
    }
}

/// A system call that can be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// open(2), also where it makes the file.
    Open,
    /// read(2)
    Read,
    /// write(2)
    Write,
    /// Never made: FFSB has the name only.
    Create,
    /// lseek(2)
    Lseek,
    /// unlink(2)
    Unlink,
    /// close(2)
    Close,
    /// stat(2) of operation `stat`
    Stat,
}

impl Call {
    /// All of them in FFSB's order, with its names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("open", Self::Open),
        ("read", Self::Read),
        ("write", Self::Write),
        ("create", Self::Create),
        ("lseek", Self::Lseek),
        ("unlink", Self::Unlink),
        ("close", Self::Close),
        ("stat", Self::Stat),
    ];

    /// FFSB's name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}
