//! The kernel's scheduler of a block device, as a condition wants it.
//!
//! Conditions stand side by side, and several may be on one device: so the scheduler is set before each
//! run, outside of what is measured, and what it was before the experiment is set again at the end.

use super::Stage;
use super::storage::Ready;
use base::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// A scheduler of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheduler {
    file: PathBuf,
    name: String,
}

/// The content of `queue/scheduler`: the one in use, in brackets, among all available ones.
fn parse(text: &str) -> (Option<&str>, Vec<&str>) {
    let mut current = None;
    let mut all = Vec::new();
    for word in text.split_whitespace() {
        let name = word.trim_start_matches('[').trim_end_matches(']');
        if name.len() < word.len() {
            current = Some(name);
        }
        all.push(name);
    }
    (current, all)
}

/// Where a device's scheduler is set: a partition has its disk's.
fn file(device: (u32, u32)) -> PathBuf {
    let directory = PathBuf::from(format!("/sys/dev/block/{}:{}", device.0, device.1));
    let is_partition = directory.join("partition").exists();
    let disk = if is_partition { directory.join("..") } else { directory };
    disk.join("queue/scheduler")
}

/// Whether a file can be written as it is.
fn check_writable(file: &Path) -> Result<(), String> {
    let opened = fs::OpenOptions::new().write(true).open(file);
    opened.map(drop).map_err(|error| format!("{}: {error}: only root may", file.display()))
}

impl Scheduler {
    /// Sets it, if another is set.
    pub(super) fn set(&self) -> Result<(), Error> {
        let text = fs::read_to_string(&self.file).map_err(Error::io("cannot read", &self.file))?;
        if parse(&text).0 == Some(self.name.as_str()) {
            return Ok(());
        }
        fs::write(&self.file, &self.name).map_err(Error::io("cannot set", &self.file))
    }

    /// Sets it, and looks whether the device has taken it: the kernel may leave things as they are without
    /// an error, where a queue cannot have schedulers.
    fn take(&self) -> Result<(), String> {
        self.set().map_err(|error| error.to_string())?;
        let text = fs::read_to_string(&self.file).map_err(|error| error.to_string())?;
        match parse(&text).0 {
            Some(current) if current == self.name => Ok(()),
            current => Err(format!(
                "the device lists scheduler {:?} and does not take it: it goes on with {}",
                self.name,
                current.unwrap_or("none that it names")
            )),
        }
    }
}

impl Stage {
    /// Looks whether a storage's device can have this scheduler, and notes the one that it has.
    pub(super) fn enter_scheduler(&mut self, ready: &Ready, name: &str) -> Result<(), String> {
        let device = ready.queue.ok_or("there is no block device of its own")?;
        let file = file(device);
        let text = fs::read_to_string(&file).map_err(|error| {
            format!("the device has no schedulers ({}: {error})", file.display())
        })?;
        let (current, all) = parse(&text);
        if !all.contains(&name) {
            return Err(format!(
                "the kernel has no scheduler {name:?} for this device: there are {}; perhaps its \
                 module has to be loaded (modprobe {name})",
                all.join(", ")
            ));
        }
        let current = current.ok_or("the kernel does not tell the device's scheduler")?;
        check_writable(&file)?;
        if !self.schedulers.contains_key(&device) {
            let leave = format!("echo '{current}' > '{}'", file.display());
            if let Some(directory) = &self.directory {
                directory.note_leave(&leave).map_err(|error| error.to_string())?;
            }
            self.leave.push(leave);
            let own = Scheduler { file: file.clone(), name: current.into() };
            self.schedulers.insert(device, own);
        }
        Scheduler { file, name: name.into() }.take()
    }

    /// The scheduler for runs on a storage: the one that its level names, else the device's own, if
    /// another level changes that.
    pub(super) fn scheduler(&self, ready: &Ready, named: Option<&str>) -> Option<Scheduler> {
        let own = self.schedulers.get(&ready.queue?)?;
        let name = named.map_or_else(|| own.name.clone(), str::to_string);
        Some(Scheduler { file: own.file.clone(), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel's list is read, with and without one in use.
    #[test]
    fn lists_are_read() {
        let text = "none [mq-deadline] kyber bfq\n";
        assert_eq!(parse(text), (Some("mq-deadline"), vec!["none", "mq-deadline", "kyber", "bfq"]));
        assert_eq!(parse("none\n"), (None, vec!["none"]));
        assert_eq!(parse("[none]\n"), (Some("none"), vec!["none"]));
    }

    /// Goal: another scheduler is set, and one that is set already is not set again.
    #[test]
    fn schedulers_are_set() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("scheduler");
        fs::write(&file, "[none] bfq\n").unwrap();
        let scheduler = |name: &str| Scheduler { file: file.clone(), name: name.into() };
        scheduler("none").set().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "[none] bfq\n");
        scheduler("bfq").set().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "bfq");
        fs::remove_file(&file).unwrap();
        assert!(scheduler("bfq").set().is_err());
    }

    /// Goal: a device that takes a name and goes on as before is noticed (a file stands in for it, which
    /// has what was written: a name without brackets tells none, one with brackets another).
    #[test]
    fn a_scheduler_that_is_not_taken_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("scheduler");
        fs::write(&file, "[none] bfq\n").unwrap();
        let scheduler = |name: &str| Scheduler { file: file.clone(), name: name.into() };
        scheduler("none").take().unwrap();
        let said = scheduler("bfq").take().unwrap_err();
        assert!(said.contains("does not take it: it goes on with none that it names"), "{said}");
        let said = scheduler("[kyber]").take().unwrap_err();
        assert!(said.contains("does not take it: it goes on with kyber"), "{said}");
    }
}
