//! A session as a block device.

use crate::session::{Answer, Inner, Memory, Session};
use block::{Access, Device, Error, Geometry, Incarnation, IoFuture};
use reactor::local::OneshotReceiver;
use reactor::{Buffer, Chunk, Segments};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Largest data of one command in bytes: its length is a 32-bit number.
const COMMAND_BYTES_MAX: u64 = 1 << 30;

/// A command to send.
#[derive(Clone, Copy)]
struct Command {
    access: Access,
    offset: u64,
    len: u64,
}

impl Command {
    fn error(self, source: io::Error) -> Error {
        let Self { access, offset, len } = self;
        Error::Io { access, offset, len, source: Arc::new(source) }
    }

    /// Queues the command, or returns why it is impossible.
    fn start(self, session: &Rc<Inner>, memory: Memory) -> Result<OneshotReceiver<Answer>, Error> {
        session.geometry().check(self.access, self.offset, self.len)?;
        if self.len > COMMAND_BYTES_MAX {
            return Err(self.error(io::ErrorKind::InvalidInput.into()));
        }
        Ok(session.command(self.offset, memory))
    }

    /// Returns the result of the command.
    async fn ended(self, receiver: OneshotReceiver<Answer>) -> Result<Memory, Error> {
        let answer = receiver.await.map_err(|error| self.error(io::Error::other(error)))?;
        answer.map_err(|source| self.error(source))
    }

    fn write(self, session: &Rc<Inner>, chunk: Chunk) -> IoFuture<()> {
        match self.start(session, Memory::Out(chunk)) {
            Ok(receiver) => IoFuture::boxed(async move { self.ended(receiver).await.map(drop) }),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    /// Reads, and converts the buffer.
    fn read<T>(
        self,
        session: &Rc<Inner>,
        finish: impl FnOnce(Buffer) -> T + 'static,
    ) -> IoFuture<T> {
        let mut buffer = Buffer::with_capacity(self.len as usize);
        buffer.set_len(self.len as usize);
        match self.start(session, Memory::In(buffer)) {
            Ok(receiver) => IoFuture::boxed(async move {
                match self.ended(receiver).await? {
                    Memory::In(buffer) => Ok(finish(buffer)),
                    _ => Err(self.error(io::ErrorKind::InvalidData.into())),
                }
            }),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }
}

impl Device for Session {
    fn geometry(&self) -> Geometry {
        Self::geometry(self)
    }

    fn incarnation(&self) -> Incarnation {
        // The protocol has no incarnation, so each session has another one.
        Incarnation::random()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let command = Command { access: Access::Read, offset, len: len as u64 };
        command.read(&self.inner, Chunk::from)
    }

    fn read_into(&self, offset: u64, mut segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(reactor::Segment::len).sum::<usize>() as u64;
        let command = Command { access: Access::Read, offset, len };
        command.read(&self.inner, move |buffer| {
            let mut done = 0;
            for segment in &mut segments {
                done += segment.fill_from(&buffer[done..]);
            }
            segments
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let command = Command { access: Access::Write, offset, len: chunk.len() as u64 };
        command.write(&self.inner, chunk)
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let mut whole = Buffer::with_capacity(chunks.iter().map(Chunk::len).sum());
        for chunk in &chunks {
            whole.extend_from_chunk(chunk, 0..chunk.len());
        }
        self.write(offset, whole.into())
    }

    fn flush(&self) -> IoFuture<()> {
        let command = Command { access: Access::Flush, offset: 0, len: 0 };
        match command.start(&self.inner, Memory::None) {
            Ok(receiver) => IoFuture::boxed(async move { command.ended(receiver).await.map(drop) }),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        let command = Command { access: Access::WriteZeroes, offset, len };
        match usize::try_from(len) {
            Ok(bytes) if len <= COMMAND_BYTES_MAX => {
                command.write(&self.inner, Buffer::zeroed(bytes).into())
            }
            _ => IoFuture::ready(Err(command.error(io::ErrorKind::InvalidInput.into()))),
        }
    }
}
