//! Processes that execute orders: a word per line on their input, an answer per line on their output. All are
//! ready and have answered before the first word is sent, so that a load of many processes begins at one time.
//! The end of its input ends a process.
//!
//! The caller waits for answers with poll(2): six hundred processes need no thread here.

use base::Error;
use base::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long an ending process may take.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How often a wish to stop is looked for.
const STOP_PERIOD: Duration = Duration::from_millis(50);
/// How long a process that did not end by itself may take after a signal.
const TERM_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are read at a time.
const PIECE_BYTES: usize = 16 << 10;

/// A process, with what it answers. Dropped, it is ended.
#[derive(Debug)]
pub struct Worker {
    name: &'static str,
    child: Child,
    words: Option<ChildStdin>,
    answers: ChildStdout,
    /// What was read and is no whole line yet, or was not asked for.
    read: Vec<u8>,
    has_ended: bool,
}

/// What reading gave.
enum Heard {
    Something,
    Nothing,
    End,
}

impl Worker {
    /// Starts a process; `name` is what errors call it.
    pub fn start(name: &'static str, mut command: Command) -> Result<Self, Error> {
        let wrong = |why: String| Error::program(name, why);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| wrong(error.to_string()))?;
        let words = child.stdin.take();
        let answers = child.stdout.take().ok_or_else(|| wrong("no output".into()))?;
        let nonblocking = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&answers, nonblocking).map_err(|errno| wrong(errno.to_string()))?;
        Ok(Self { name, child, words, answers, read: Vec::new(), has_ended: false })
    }

    /// Sends it an order.
    pub fn tell(&mut self, word: &str) -> Result<(), Error> {
        let wrong = |why: String| Error::program(self.name, why);
        let pipe = self.words.as_mut().ok_or_else(|| wrong("no input".into()))?;
        writeln!(pipe, "{word}").map_err(|error| wrong(error.to_string()))
    }

    /// Its next answer, if it comes before patience or the user ends it.
    pub fn answer(&mut self, patience: Duration, stop: &Stop) -> Result<String, Error> {
        let begun = Instant::now();
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.drain(..=end).take(end).collect::<Vec<_>>();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            match self.hear(STOP_PERIOD)? {
                Heard::End => return Err(Error::program(self.name, "a process ended")),
                Heard::Nothing if stop.is_requested() => return Err(Error::Interrupted),
                Heard::Nothing if begun.elapsed() > patience => {
                    return Err(Error::program(self.name, "a process does not answer"));
                }
                Heard::Something | Heard::Nothing => {}
            }
        }
    }

    /// Waits for so long until there is something to read, and reads it.
    fn hear(&mut self, wait: Duration) -> Result<Heard, Error> {
        let wrong = |why: String| Error::program(self.name, why);
        let mut set = [PollFd::new(&self.answers, PollFlags::IN)];
        let wait = Timespec::try_from(wait).map_err(|error| wrong(error.to_string()))?;
        let ready = rustix::io::retry_on_intr(|| poll(&mut set, Some(&wait)));
        if ready.map_err(|errno| wrong(errno.to_string()))? == 0 {
            return Ok(Heard::Nothing);
        }
        let mut piece = [0; PIECE_BYTES];
        match self.answers.read(&mut piece) {
            Ok(0) => Ok(Heard::End),
            Ok(count) => {
                self.read.extend_from_slice(&piece[..count]);
                Ok(Heard::Something)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Heard::Nothing),
            Err(error) => Err(wrong(error.to_string())),
        }
    }
}

impl Worker {
    /// Lets it end by itself, however long that takes. Returns how it ended.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.dismiss();
        loop {
            // What it still writes is read, or it could not end.
            self.read.clear();
            let is_silent = matches!(self.hear(STOP_PERIOD)?, Heard::End);
            let ended = if is_silent { self.child.wait().map(Some) } else { self.child.try_wait() };
            let ended = ended.map_err(|error| Error::program(self.name, error.to_string()))?;
            if let Some(status) = ended {
                self.has_ended = true;
                return Ok(status);
            }
        }
    }

    /// Ends its input, so that it ends by itself; dropping it waits for that.
    pub fn dismiss(&mut self) {
        self.words = None;
    }

    /// Lets several end by themselves, all of them together within the time that one may take.
    pub fn end_all<'a>(workers: impl Iterator<Item = &'a mut Self>) {
        let mut workers: Vec<_> = workers.collect();
        for worker in &mut workers {
            worker.dismiss();
        }
        let until = Instant::now() + END_PATIENCE;
        for worker in workers {
            worker.end_by(until);
        }
    }

    /// Waits until it has ended by itself, and ends it if it hangs.
    fn end_by(&mut self, until: Instant) {
        if self.has_ended {
            return;
        }
        self.dismiss();
        let hangs = loop {
            self.read.clear();
            let left = until.saturating_duration_since(Instant::now());
            match self.hear(left) {
                Ok(Heard::Something) => {}
                // Its output ends with it, or a moment before.
                Ok(Heard::End) => break !self.ends_within(END_PATIENCE),
                Ok(Heard::Nothing) if !left.is_zero() => {}
                Ok(Heard::Nothing) | Err(_) => break true,
            }
        };
        if hangs {
            // Its group, if it has one of its own: runtimes pass signals on to their containers.
            let group = Pid::from_child(&self.child);
            let _ = kill_process_group(group, Signal::TERM);
            if !self.ends_within(TERM_PATIENCE) {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = self.child.kill();
            }
        }
        // A process that cannot be waited for is no child of ours any more.
        let _ = self.child.wait();
        self.has_ended = true;
    }
}

impl Worker {
    fn ends_within(&mut self, patience: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end_by(Instant::now() + END_PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Worker::start("shell", command).unwrap()
    }

    /// Goal: words and answers go to and fro; what ends, is stopped or keeps silent is an error of its own
    /// kind; the end of its input ends a process.
    #[test]
    fn words_are_answered() {
        let long = Duration::from_mins(1);
        let mut echo = shell("while read word; do echo \"did $word\"; done");
        for word in ["one", "two"] {
            echo.tell(word).unwrap();
            assert_eq!(echo.answer(long, &Stop::default()).unwrap(), format!("did {word}"));
        }
        let stop = Stop::default();
        stop.request();
        assert!(matches!(echo.answer(long, &stop), Err(Error::Interrupted)));
        let late = echo.answer(Duration::from_millis(60), &Stop::default()).unwrap_err();
        assert!(late.to_string().contains("does not answer"), "{late}");
        drop(echo);
        // Two lines that came at a time are two answers.
        let mut two = shell("printf 'one\\ntw'; sleep 0.1; echo o; read word");
        for word in ["one", "two"] {
            assert_eq!(two.answer(long, &Stop::default()).unwrap(), word);
        }
        let mut waits = shell("read word; exit 3");
        assert_eq!(waits.wait().unwrap().code(), Some(3));
        let ended = shell("exit 3").answer(long, &Stop::default()).unwrap_err();
        assert!(ended.to_string().contains("ended"), "{ended}");
    }
}
