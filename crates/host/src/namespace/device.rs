//! The namespace as a block device.

use super::Namespace;
use crate::error::Error;
use block::{Access, Device, Geometry, Incarnation, IoFuture};
use reactor::{Buffer, Chunk, Segment, Segments, Shared};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Begins the request now, as devices promise: the first poll submits it.
fn begin<T: 'static>(
    access: Access,
    offset: u64,
    len: u64,
    future: impl Future<Output = Result<T, Error>> + 'static,
) -> IoFuture<T> {
    let mut future = Box::pin(async move {
        future.await.map_err(|error| block::Error::Io {
            access,
            offset,
            len,
            source: Arc::new(to_io_error(error)),
        })
    });
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => IoFuture::ready(result),
        Poll::Pending => IoFuture::boxed(future),
    }
}

/// Converts an error and keeps it as the source, under the kind that fits best.
fn to_io_error(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.to_errno()).kind();
    io::Error::new(kind, error)
}

impl Namespace {
    async fn read_segments(self, offset: u64, segments: Segments) -> Result<Segments, Error> {
        let mut position = offset;
        let mut filled = Segments::new();
        let block_size = self.0.geometry.block_size as usize;
        let is_whole = segments.iter().all(|segment| segment.len().is_multiple_of(block_size));
        if !is_whole {
            return self.read_scattered(offset, segments).await;
        }
        // One after the other: more than one segment is rare, and each is read in parallel parts.
        for segment in segments {
            let len = segment.len();
            filled.push(self.read_segment(position, segment).await?);
            position += len as u64;
        }
        Ok(filled)
    }

    async fn read_segment(&self, offset: u64, segment: Segment) -> Result<Segment, Error> {
        match segment {
            Segment::Buffer(mut buffer, range) => {
                self.check("read", offset, range.len() as u64)?;
                let end = range.end.max(buffer.len());
                buffer.set_len(end);
                let shared = Rc::new(RefCell::new(Some(buffer)));
                self.read_parts(offset, &shared, range.start, range.len()).await?;
                let buffer = shared.take();
                let buffer = buffer.ok_or(Error::ConnectionLost(crate::ConnectionEnd::Closed))?;
                Ok(Segment::Buffer(buffer, range))
            }
            Segment::Region(slice) => {
                let mut buffer = Buffer::with_capacity(slice.len());
                buffer.set_len(slice.len());
                let buffer = self.read(offset, buffer).await?;
                slice.copy_in(&buffer);
                Ok(Segment::Region(slice))
            }
        }
    }

    /// Reads into segments that are not whole blocks, through a buffer.
    async fn read_scattered(&self, offset: u64, segments: Segments) -> Result<Segments, Error> {
        let len = segments.iter().map(Segment::len).sum();
        let mut buffer = Buffer::with_capacity(len);
        buffer.set_len(len);
        let buffer = self.read(offset, buffer).await?;
        let mut rest: &[u8] = &buffer;
        let mut filled = Segments::new();
        for segment in segments {
            let (bytes, behind) = rest.split_at(segment.len());
            rest = behind;
            filled.push(match segment {
                Segment::Buffer(mut target, range) => {
                    target.set_len(range.end.max(target.len()));
                    target[range.clone()].copy_from_slice(bytes);
                    Segment::Buffer(target, range)
                }
                Segment::Region(slice) => {
                    slice.copy_in(bytes);
                    Segment::Region(slice)
                }
            });
        }
        Ok(filled)
    }
}

/// Returns several chunks as one.
fn gather(chunks: Vec<Chunk>) -> Shared {
    let mut chunks = chunks.into_iter();
    match (chunks.next(), chunks.len()) {
        (Some(only), 0) => only.into_shared(),
        (None, _) => Buffer::with_capacity(0).freeze(),
        (Some(first), _) => {
            let chunks: Vec<Chunk> = std::iter::once(first).chain(chunks).collect();
            let mut buffer = Buffer::with_capacity(chunks.iter().map(Chunk::len).sum());
            for chunk in &chunks {
                buffer.extend_from_chunk(chunk, 0..chunk.len());
            }
            buffer.freeze()
        }
    }
}

impl Device for Namespace {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// Returns the incarnation that the target reports. If it reports none, returns a name made
    /// from the namespace's identity, which is at least stable.
    fn incarnation(&self) -> Incarnation {
        let identity = &self.0.identity;
        let name = identity.uuid.map(|uuid| uuid.as_u128());
        let name = name.or(identity.nguid.map(u128::from_le_bytes));
        let name = name.or(identity.eui64.map(|id| u128::from(u64::from_le_bytes(id))));
        Incarnation(self.0.incarnation.get().or(name).unwrap_or_default())
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let this = self.clone();
        begin(Access::Read, offset, len as u64, async move {
            this.check("read", offset, len as u64)?;
            let mut buffer = Buffer::with_capacity(len);
            buffer.set_len(len);
            this.read(offset, buffer).await.map(Chunk::from)
        })
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(Segment::len).sum::<usize>() as u64;
        begin(Access::Read, offset, len, self.clone().read_segments(offset, segments))
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let this = self.clone();
        let len = chunk.len() as u64;
        let bytes = chunk.into_shared();
        begin(Access::Write, offset, len, async move { this.write(offset, bytes).await })
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let this = self.clone();
        let bytes = gather(chunks);
        let len = bytes.len() as u64;
        begin(Access::Write, offset, len, async move { this.write(offset, bytes).await })
    }

    fn flush(&self) -> IoFuture<()> {
        let this = self.clone();
        begin(Access::Flush, 0, 0, async move { this.flush().await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let this = self.clone();
        begin(Access::Discard, offset, len, async move { this.discard(offset, len).await })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        let this = self.clone();
        let future = async move { this.write_zeroes(offset, len).await };
        begin(Access::WriteZeroes, offset, len, future)
    }
}
