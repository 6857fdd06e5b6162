//! Child processes that may take only so long: a machine may hang, and so may the ssh or srun that
//! reaches it, and users can stop programs that root runs as them.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the output may stay open after the end of the process: a program that it has left in
/// the background, as a shared connection of ssh, may hold it.
const OPEN_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two looks for the end of a process that has closed its output.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Lines of output that may wait to be read.
const LINES_MAX: usize = 64;

/// A stream that a thread reads.
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    end: Receiver<()>,
}

impl Stream {
    /// Reads up to `bytes_max`, and drops the rest, because the process would block on a full pipe.
    fn read(from: Option<impl Read + Send + 'static>, bytes_max: usize) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (sender, end) = channel::<()>();
        if let Some(mut from) = from {
            let into = Arc::clone(&bytes);
            std::thread::spawn(move || {
                let _sender = sender;
                let mut piece = vec![0; 16 << 10];
                while let Ok(length) = from.read(&mut piece)
                    && length > 0
                {
                    let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                    let length = length.min(bytes_max - into.len());
                    into.extend_from_slice(&piece[..length]);
                }
            });
        }
        Stream { bytes, end }
    }

    /// Waits for the end of the stream, or for the deadline.
    fn wait(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let _ = self.end.recv_timeout(left);
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running process whose output arrives line by line.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Stream,
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLine {
    /// The output has ended.
    Ended,
    /// Not in time.
    Late,
}

impl Running {
    /// Starts a process. `input` gets its standard input and writes it on a thread of its own.
    pub(crate) fn start(
        command: &mut Command,
        line_bytes_max: u64,
        complaint_bytes_max: usize,
        input: impl FnOnce(ChildStdin) + Send + 'static,
    ) -> io::Result<Running> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(stdin) = child.stdin.take() {
            std::thread::spawn(move || input(stdin));
        }
        let errors = Stream::read(child.stderr.take(), complaint_bytes_max);
        let (sender, received) = sync_channel(LINES_MAX);
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || pass(BufReader::new(output), line_bytes_max, &sender));
        }
        Ok(Running { child, lines: received, errors })
    }

    /// Returns the next line.
    pub(crate) fn line(&self, deadline: Instant) -> Result<String, NoLine> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoLine::Late,
            RecvTimeoutError::Disconnected => NoLine::Ended,
        })
    }

    /// Waits for the end of the process, and kills it at the deadline. Returns its status and error
    /// output; no status if it did not end.
    pub(crate) fn end(self, deadline: Instant) -> (Option<ExitStatus>, String) {
        let Running { mut child, lines, errors } = self;
        // Otherwise the process could wait for lines to be taken.
        drop(lines);
        let status = wait(&mut child, deadline);
        if status.is_some() {
            errors.wait(Instant::now() + OPEN_WITHIN);
        }
        (status, String::from_utf8_lossy(&errors.take()).trim().into())
    }

    /// Sends SIGTERM to the process if it has not ended at the deadline.
    pub(crate) fn ask_to_end(&mut self, deadline: Instant) {
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() < deadline {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            // It has not been waited for, so its number is still its own.
            if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
                let _ = kill_process(pid, Signal::TERM);
            }
            return;
        }
    }
}

fn pass(output: impl BufRead, line_bytes_max: u64, sender: &SyncSender<String>) {
    for line in lines(output, line_bytes_max) {
        // Without a receiver it goes on reading, because the process would block on a full pipe.
        let _ = sender.send(line);
    }
}

/// Returns the lines of a stream until its end or an error. No line is longer than `bytes_max`.
pub(crate) fn lines(mut from: impl BufRead, bytes_max: u64) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        let mut line = String::new();
        let length = from.by_ref().take(bytes_max).read_line(&mut line);
        length.is_ok_and(|bytes| bytes > 0).then_some(line)
    })
}

/// Starts a process; `None` if it does not start in time. A user whose rights it takes can stop it
/// before it executes its program, and `spawn` waits for that.
fn spawn(mut command: Command, deadline: Instant) -> io::Result<Option<Child>> {
    let (sender, started) = channel();
    // The thread may wait for ever; the end of this process then ends it.
    let start = move || {
        if let Err(SendError(Ok(mut late))) = sender.send(command.spawn()) {
            let _ = late.kill();
            let _ = late.wait();
        }
    };
    std::thread::Builder::new().spawn(start)?;
    let left = deadline.saturating_duration_since(Instant::now());
    started.recv_timeout(left).ok().transpose()
}

/// Runs a command without input. Returns its output; `None` if it did not end in time.
pub(crate) fn output(
    mut command: Command,
    output_bytes_max: usize,
    within: Duration,
) -> io::Result<Option<Output>> {
    let deadline = Instant::now() + within;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Some(mut child) = spawn(command, deadline)? else { return Ok(None) };
    let streams = [
        Stream::read(child.stdout.take(), output_bytes_max),
        Stream::read(child.stderr.take(), output_bytes_max),
    ];
    streams[0].wait(deadline);
    let Some(status) = wait(&mut child, deadline) else { return Ok(None) };
    streams[1].wait(Instant::now() + OPEN_WITHIN);
    let [stdout, stderr] = streams.map(|stream| stream.take());
    Ok(Some(Output { status, stdout, stderr }))
}

/// Waits for the end of a process, and kills it at the deadline. A process that waits for a dead
/// mount or disk does not end even then.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            Ok(None) | Err(_) => break,
        }
    }
    let _ = child.kill();
    std::thread::sleep(LOOK_EVERY);
    let _ = child.try_wait();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a command that hangs ends the wait at the deadline, also if it has closed its output;
    /// one that leaves a program with its error output in the background does not delay it.
    #[test]
    fn hanging_commands_end_the_wait() {
        let shell = |script: &str, within_ms: u64| {
            let start = Instant::now();
            let within = Duration::from_millis(within_ms);
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let result = output(command, 1 << 20, within).unwrap();
            assert!(start.elapsed() < Duration::from_secs(5), "{script}");
            result
        };
        assert!(shell("exec sleep 60", 100).is_none());
        assert!(shell("exec sleep 60 >&- 2>&-", 100).is_none());
        let left = shell("echo a; echo b >&2; sleep 60 >/dev/null &", 60_000).unwrap();
        assert_eq!((left.stdout.as_slice(), left.stderr.as_slice()), (&b"a\n"[..], &b"b\n"[..]));
        let full = shell("head -c 3000000 /dev/zero", 60_000).unwrap();
        assert_eq!(full.stdout.len(), 1 << 20);
    }
}
