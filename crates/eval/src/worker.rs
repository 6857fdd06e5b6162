//! Processes that work when they are told to: a word by line on their input, an answer by line on
//! their output. All are there and have answered before the first word is sent, so that a load of many
//! processes begins at one time. The end of its input ends a process.

use crate::engine::Stop;
use crate::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a process that was told to end may take.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How often a wish to stop is looked for.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// A process, with what it answers. Dropped, it is ended.
#[derive(Debug)]
pub struct Worker {
    name: &'static str,
    child: Child,
    words: Option<ChildStdin>,
    answers: mpsc::Receiver<String>,
}

impl Worker {
    /// Starts a process; `name` is what errors call it.
    pub fn start(name: &'static str, mut command: Command) -> Result<Self, Error> {
        let wrong = |why: String| Error::program(name, why);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| wrong(error.to_string()))?;
        let words = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(|| wrong("no output".into()))?;
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { name, child, words, answers })
    }

    /// Tells it what to do.
    pub fn tell(&mut self, word: &str) -> Result<(), Error> {
        let wrong = |why: String| Error::program(self.name, why);
        let pipe = self.words.as_mut().ok_or_else(|| wrong("no input".into()))?;
        writeln!(pipe, "{word}").map_err(|error| wrong(error.to_string()))
    }

    /// Its next answer, if it comes before patience or the user ends it.
    pub fn answer(&self, patience: Duration, stop: &Stop) -> Result<String, Error> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            match self.answers.recv_timeout(STOP_PERIOD) {
                Ok(line) => return Ok(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::program(self.name, "a process ended"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) if stop.is_requested() => {
                    return Err(Error::Interrupted);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
        Err(Error::program(self.name, "a process does not answer"))
    }
}

impl Worker {
    /// Ends its input, so that it ends by itself; whoever drops it waits for that.
    pub fn dismiss(&mut self) {
        self.words = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that hangs is ended.
        self.dismiss();
        let begun = Instant::now();
        loop {
            let left = END_PATIENCE.saturating_sub(begun.elapsed());
            match self.answers.recv_timeout(left) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    break;
                }
            }
        }
        let _ = self.child.wait();
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
        let ended = shell("exit 3").answer(long, &Stop::default()).unwrap_err();
        assert!(ended.to_string().contains("ended"), "{ended}");
    }
}
