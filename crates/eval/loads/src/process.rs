//! Running programs: to their end, until the user stops, or until patience ends.
//!
//! Children get a process group of their own, so that Ctrl-C on the terminal reaches only us and we
//! decide what is ended, in which order.

use base::Error;
use base::Stop;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const POLL_PERIOD: Duration = Duration::from_millis(5);
/// Most of a program's output that is kept.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// What became of a program.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// The command line, quoted as a shell takes it.
pub fn shown(command: &Command) -> String {
    let quote = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy().into_owned();
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(&b);
        if !word.is_empty() && word.bytes().all(is_plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quote).collect::<Vec<_>>().join(" ")
}

/// What a program says, if it succeeds.
pub fn output(program: &str, arguments: &[&str]) -> Result<String, Error> {
    succeed(Command::new(program).args(arguments))
}

/// What a command says, if it succeeds within a minute.
pub fn succeed(command: &mut Command) -> Result<String, Error> {
    let patience = Duration::from_mins(1);
    let finished = run(command, &Stop::default(), patience, Duration::from_secs(1))?;
    if finished.status.success() {
        return Ok(finished.stdout);
    }
    let program = command.get_program().to_string_lossy().into_owned();
    Err(Error::program(&program, format!("{}: {}", finished.status, finished.stderr.trim())))
}

/// Runs a program, whose output goes where the command says, to its end. On a stop, or after `patience`,
/// its group is ended.
pub fn follow(command: &mut Command, stop: &Stop, patience: Duration) -> Result<ExitStatus, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let wrong = |error: std::io::Error| Error::program(&name, error.to_string());
    let mut child = command.process_group(0).spawn().map_err(wrong)?;
    match wait(&mut child, stop, patience, Duration::from_secs(1)).map_err(wrong)? {
        End::Stopped => Err(Error::Interrupted),
        End::TooLong => Err(Error::program(&name, format!("did not end within {patience:?}"))),
        End::Itself(status) => Ok(status),
    }
}

/// Runs a program to its end. On a stop, or after `patience`, it gets SIGTERM, and SIGKILL after
/// `end_patience`.
pub fn run(
    command: &mut Command,
    stop: &Stop,
    patience: Duration,
    end_patience: Duration,
) -> Result<Finished, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| Error::program(&name, error.to_string()))?;
    let stdout = child.stdout.take().map(reader);
    let stderr = child.stderr.take().map(reader);
    let ended = wait(&mut child, stop, patience, end_patience);
    let text = |thread: Option<std::thread::JoinHandle<String>>| {
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    match ended.map_err(|error| Error::program(&name, error.to_string()))? {
        End::Stopped => Err(Error::Interrupted),
        End::TooLong => Err(Error::program(&name, format!("did not end within {patience:?}"))),
        End::Itself(status) => Ok(Finished { status, stdout, stderr }),
    }
}

enum End {
    Itself(ExitStatus),
    Stopped,
    TooLong,
}

fn wait(
    child: &mut Child,
    stop: &Stop,
    patience: Duration,
    end_patience: Duration,
) -> std::io::Result<End> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            // A child that a signal from us did not end has ended by itself.
            return Ok(End::Itself(status));
        }
        if stop.is_requested() || begun.elapsed() > patience {
            end(child, end_patience)?;
            return Ok(if stop.is_requested() { End::Stopped } else { End::TooLong });
        }
        std::thread::sleep(POLL_PERIOD);
    }
}

/// Ends children and their groups, all of them within `patience`.
pub fn end_all(children: Vec<&mut Child>, patience: Duration) {
    for child in &children {
        let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
    }
    let until = Instant::now() + patience;
    for child in children {
        // A process that cannot be waited for is no child of ours any more.
        let _ = end(child, until.saturating_duration_since(Instant::now()));
    }
}

/// Ends a child and its group.
pub fn end(child: &mut Child, patience: Duration) -> std::io::Result<ExitStatus> {
    let group = Pid::from_child(child);
    // A group that is gone already needs no signal.
    let _ = kill_process_group(group, Signal::TERM);
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(POLL_PERIOD);
    }
    let _ = kill_process_group(group, Signal::KILL);
    child.wait()
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read until an error is what there is.
        let _ = from.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// Goal: output and status come back, a stop ends the whole group, patience ends.
    #[test]
    fn programs_end() {
        let long = Duration::from_mins(1);
        let run = |script: &str, stop: &Stop, patience| {
            super::run(&mut shell(script), stop, patience, Duration::from_secs(5))
        };
        let done = run("echo out; echo err >&2; exit 3", &Stop::default(), long).unwrap();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(done.status.code(), Some(3));
        let stop = Stop::default();
        stop.request();
        assert!(matches!(run("sleep 1000 & wait", &stop, long), Err(Error::Interrupted)));
        let late = run("sleep 1000 & wait", &Stop::default(), Duration::from_millis(50));
        assert!(matches!(late, Err(Error::Program { .. })));
        assert!(output("no-such-program", &[]).is_err());
    }

    /// Goal: what is shown can be pasted into a shell.
    #[test]
    fn shown_commands_are_quoted() {
        assert_eq!(shown(Command::new("a").args(["b c", "it's", "d=e"])), r"a 'b c' 'it'\''s' d=e");
    }
}
