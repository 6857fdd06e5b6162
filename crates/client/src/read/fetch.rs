//! Carrying out a planned read: device commands, and the chunks of the answer.

use crate::client::Client;
use crate::fetched::Fetched;
use crate::read::check::Unread;
use crate::read::command;
use crate::read::command::Command;
use crate::read::plan::ReadPart;
use crate::sums::Checks;
use protocol::Errno;
use reactor::{Buffer, Chunk, RegionSlice, Shared};
use std::rc::Rc;

thread_local! {
    static ZEROS: Shared = Buffer::zeroed(1 << 20).freeze();
}

impl Client {
    /// Reads the parts on devices, checks them, and returns all parts as chunks.
    pub(crate) async fn carry_out(
        self: &Rc<Self>,
        parts: &[ReadPart],
        checks: &Checks,
        room: Option<&RegionSlice>,
    ) -> Result<Vec<Chunk>, Unread> {
        let mut commands = command::of_parts(parts, |device| self.block_size(device))?;
        if let Some(room) = room {
            command::place(&mut commands, parts, room);
        }
        if commands.is_empty() {
            return Ok(assemble(parts, &[], &[]));
        }
        // Boxed: a read from memory does not carry the state that devices need.
        let fetched = Box::pin(self.fetch_all(&commands, checks)).await?;
        Ok(assemble(parts, &commands, &fetched))
    }

    /// Runs all commands, several of them as tasks.
    async fn fetch_all(
        self: &Rc<Self>,
        commands: &[Command],
        checks: &Checks,
    ) -> Result<Vec<Fetched>, Unread> {
        let mut fetched = Vec::with_capacity(commands.len());
        if let [command] = commands {
            fetched.push(self.fetch(command, checks).await?);
        } else {
            let checks = Rc::new(checks.clone());
            let mut tasks = Vec::with_capacity(commands.len());
            for command in commands {
                let (client, command) = (Rc::clone(self), command.clone());
                let checks = Rc::clone(&checks);
                tasks.push(reactor::spawn(async move { client.fetch(&command, &checks).await }));
            }
            let mut failed = None;
            for task in tasks {
                // Waits for all of them, so that none outlives the read.
                match task.await.unwrap_or(Err(Unread::Failed(Errno::EIO))) {
                    Ok(bytes) => fetched.push(bytes),
                    Err(unread) => failed = Some(unread),
                }
            }
            if let Some(unread) = failed {
                return Err(unread);
            }
        }
        Ok(fetched)
    }

    /// Runs a command and checks its bytes.
    async fn fetch(self: &Rc<Self>, command: &Command, checks: &Checks) -> Result<Fetched, Unread> {
        let Command { device, range, room } = command;
        let fetched = if let Some(room) = room {
            self.read_device_into(*device, range.start, room).await?;
            Fetched::Placed(room.clone())
        } else {
            let length = (range.end - range.start) as usize;
            Fetched::OwnCommit(self.read_device(*device, range.start, length).await?)
        };
        self.checked(command, fetched, checks).await
    }
}

/// Returns the chunks of all parts in the order of the file.
fn assemble(parts: &[ReadPart], commands: &[Command], fetched: &[Fetched]) -> Vec<Chunk> {
    let mut chunks = Vec::with_capacity(parts.len());
    assert_eq!(commands.len(), fetched.len(), "a read has answers to other commands");
    for part in parts {
        match part {
            ReadPart::Memory(shared) => chunks.push(Chunk::Shared(shared.clone())),
            ReadPart::Hole(length) => ZEROS.with(|zeros| {
                let mut left = *length as usize;
                while left > 0 {
                    let now = left.min(zeros.len());
                    chunks.push(Chunk::Shared(zeros.slice(..now)));
                    left -= now;
                }
            }),
            ReadPart::Device { device, address, length } => {
                let index = command::index_of(commands, *device, *address);
                let start = (address - commands[index].range.start) as usize;
                chunks.push(fetched[index].range(start, *length as usize));
            }
        }
    }
    chunks
}
