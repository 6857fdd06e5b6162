//! The start barrier, and the processes that meet there.

use super::seat::{GO, START, Seat};
use crate::process;
use base::Error;
use base::Stop;
use base::clock::now_ns;
use rustix::fs::{CWD, FileType, Mode};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often processes are looked after: at least so long, and so much longer for each of them.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_EACH: Duration = Duration::from_micros(200);
/// Time between the signal and the start: a minimum, and an addition per instance.
const AHEAD_MIN: Duration = Duration::from_millis(20);
const AHEAD_EACH: Duration = Duration::from_micros(200);
/// How long ending instances may take, all of them together.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Most of a failed instance's words that are kept.
const COMPLAINT_LETTERS_MAX: usize = 2000;
const NAME: &str = "crowd";

/// How long instances may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first one's start until all are ready.
    pub ready: Duration,
    /// From when they begin until all have ended.
    pub run: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { ready: Duration::from_mins(30), run: Duration::from_mins(30) }
    }
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many instances have been started.
    Started(u32),
    /// So many are ready.
    Ready(u32),
    /// All have received the signal to start.
    Begun,
    /// So many have ended.
    Ended(u32),
}

/// What a meeting gave, by instance.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// When each was ready, in ns of the monotonic clock.
    pub ready_ns: Vec<u64>,
    /// When all received the signal to start.
    pub start_ns: u64,
    /// What each wrote to its standard output.
    pub outputs: Vec<String>,
}

/// A start barrier in a directory of its own, which is removed in the end.
#[derive(Debug)]
pub struct Meeting {
    /// The scratch directory that instances see too.
    scratch: PathBuf,
    name: String,
}

/// A process, ended when it is dropped.
struct Instance {
    child: Child,
    has_ended: bool,
}

impl Meeting {
    /// Makes one in a scratch directory of ours that all instances see.
    pub fn make(scratch: &Path) -> Result<Self, Error> {
        let name = format!("meeting-{}-{}", std::process::id(), now_ns());
        let meeting = Self { scratch: scratch.into(), name };
        let path = meeting.path();
        fs::create_dir(&path).map_err(Error::io("cannot make", &path))?;
        let go = path.join(GO);
        rustix::fs::mknodat(CWD, &go, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|errno| Error::io("cannot make", &go)(errno.into()))?;
        Ok(meeting)
    }

    fn path(&self) -> PathBuf {
        self.scratch.join(&self.name)
    }

    /// The seat of an instance that sees the scratch directory as `inside`.
    pub fn seat(&self, inside: &Path, number: u32) -> Seat {
        Seat::new(&inside.join(&self.name), number)
    }

    fn file(&self, what: &str, number: usize) -> PathBuf {
        self.path().join(format!("{what}-{number}"))
    }

    /// Starts one instance for each command, lets them begin together when all are ready, and waits for
    /// their end. If one fails, the user stops or patience ends, all are ended; the error has the words of
    /// the one that failed. The processes' groups are their own, so that Ctrl-C reaches only us.
    pub fn hold(
        &self,
        commands: Vec<Command>,
        patience: &Patience,
        stop: &Stop,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Gathered, Error> {
        let count = commands.len();
        let mut crowd = Crowd(Vec::with_capacity(count));
        let begun = Instant::now();
        for (number, command) in commands.into_iter().enumerate() {
            if stop.is_requested() {
                return Err(Error::Interrupted);
            }
            crowd.0.push(self.start(number, command)?);
            tell(Progress::Started(number as u32 + 1));
        }
        let pause = POLL_MIN.max(POLL_EACH * count as u32);
        let mut waiting = Waiting { stop, until: begun + patience.ready, pause };
        let mut told = 0;
        loop {
            let ready = (0..count).filter(|number| self.file("ready", *number).exists()).count();
            if ready != told {
                told = ready;
                tell(Progress::Ready(ready as u32));
            }
            if ready == count {
                break;
            }
            // No instance ends in order before the barrier.
            if let Some(number) = crowd.next_ended()? {
                return Err(self.complaint(number, "ended before it was ready"));
            }
            waiting.pause("not all instances were ready")?;
        }
        let start_ns = self.release(count)?;
        tell(Progress::Begun);
        waiting.until = Instant::now() + patience.run;
        let mut ended = 0;
        while ended < count {
            match crowd.next_ended()? {
                Some(number) => {
                    let status = crowd.0[number].child.wait();
                    let status = status.map_err(|error| Error::program(NAME, error.to_string()))?;
                    if !status.success() {
                        return Err(self.complaint(number, &status.to_string()));
                    }
                    ended += 1;
                    tell(Progress::Ended(ended as u32));
                }
                None => waiting.pause("not all instances ended")?,
            }
        }
        self.gather(count, start_ns)
    }

    fn start(&self, number: usize, mut command: Command) -> Result<Instance, Error> {
        let output = |what: &str| {
            let path = self.file(what, number);
            File::create_new(&path).map_err(Error::io("cannot make", &path))
        };
        command.stdin(Stdio::null()).stdout(output("out")?).stderr(output("err")?);
        let child = command.process_group(0).spawn();
        let shown = command.get_program().to_string_lossy();
        let child = child.map_err(|error| Error::program(&shown, error.to_string()))?;
        Ok(Instance { child, has_ended: false })
    }

    /// Sends all instances that are or will be ready the time of their start.
    fn release(&self, count: usize) -> Result<u64, Error> {
        let ahead = AHEAD_MIN.max(AHEAD_EACH * count as u32);
        let start_ns = now_ns() + ahead.as_nanos() as u64;
        let start = self.path().join(START);
        fs::write(&start, start_ns.to_string()).map_err(Error::io("cannot write", &start))?;
        let go = self.path().join(GO);
        // Open for both never sleeps, and lets all readers go. It stays open for those who said that they
        // are ready and are about to open it: they see the file above first.
        let wrong = Error::io("cannot open", &go);
        let writer = File::options().read(true).write(true).open(&go).map_err(wrong)?;
        std::thread::sleep(ahead);
        // An instance that comes later still finds a way in: a plain file of this name opens at once.
        let plain = self.path().join("gone");
        fs::write(&plain, "").map_err(Error::io("cannot write", &plain))?;
        fs::rename(&plain, &go).map_err(Error::io("cannot rename", &plain))?;
        drop(writer);
        Ok(start_ns)
    }

    fn read(&self, what: &str, number: usize) -> Result<String, Error> {
        let path = self.file(what, number);
        fs::read_to_string(&path).map_err(Error::io("cannot read", &path))
    }

    fn complaint(&self, number: usize, what: &str) -> Error {
        let said = self.read("err", number).unwrap_or_default();
        let tail: String = said.trim().chars().take(COMPLAINT_LETTERS_MAX).collect();
        Error::program(&format!("instance {number}"), format!("{what}: {tail}"))
    }

    fn gather(&self, count: usize, start_ns: u64) -> Result<Gathered, Error> {
        let mut gathered = Gathered { start_ns, ..Gathered::default() };
        for number in 0..count {
            let ready = self.read("ready", number)?;
            let ready = ready.trim().parse().map_err(|_| self.complaint(number, "says no time"))?;
            gathered.ready_ns.push(ready);
            gathered.outputs.push(self.read("out", number)?);
        }
        Ok(gathered)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // What cannot be removed goes with the scratch directory.
        let _ = fs::remove_dir_all(self.path());
    }
}

/// Looking again and again, with an end.
struct Waiting<'a> {
    stop: &'a Stop,
    until: Instant,
    pause: Duration,
}

impl Waiting<'_> {
    fn pause(&mut self, late: &str) -> Result<(), Error> {
        if self.stop.is_requested() {
            return Err(Error::Interrupted);
        }
        if Instant::now() > self.until {
            return Err(Error::program(NAME, format!("{late} in time")));
        }
        std::thread::sleep(self.pause);
        Ok(())
    }
}

/// All processes; those that run when it is dropped are ended.
struct Crowd(Vec<Instance>);

impl Crowd {
    /// A process that has ended and was not reported before.
    fn next_ended(&mut self) -> Result<Option<usize>, Error> {
        for (number, instance) in self.0.iter_mut().enumerate() {
            if instance.has_ended {
                continue;
            }
            let status = instance.child.try_wait();
            if status.map_err(|error| Error::program(NAME, error.to_string()))?.is_some() {
                instance.has_ended = true;
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let children = self.0.iter_mut().filter(|it| !it.has_ended).map(|it| &mut it.child);
        process::end_all(children.collect(), END_PATIENCE);
    }
}
