//! A job's directory: its path, its owner and its lock.

use super::place::{self, Trust};
use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::{Mode, OFlags};
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Longest job name: it becomes part of network namespaces and paths.
const NAME_MAX: usize = 128;

/// The job of a command.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobArgs {
    /// Name of the job (default: `$TSUMUGI_JOB`, else the Slurm job's number, else "default")
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Base directory of the jobs' directories (default: /run/tsumugi for root, else
    /// `$XDG_RUNTIME_DIR/tsumugi`)
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

impl JobArgs {
    /// Returns the job's directory.
    pub(crate) fn dir(&self) -> anyhow::Result<JobDir> {
        JobDir::new(self.job.as_deref(), self.dir.as_deref())
    }
}

/// The job of a command that takes its name without an option, too.
#[derive(Clone, Debug, Args)]
pub(crate) struct NamedArgs {
    /// Name of the job, as with --job
    #[arg(value_name = "NAME", conflicts_with = "job")]
    name: Option<String>,
    #[command(flatten)]
    options: JobArgs,
}

impl NamedArgs {
    /// Returns the job as options give it.
    pub(crate) fn job(&self) -> JobArgs {
        let job = self.name.as_ref().or(self.options.job.as_ref()).cloned();
        JobArgs { job, ..self.options.clone() }
    }

    /// Returns the base directory that the user chose.
    pub(crate) fn base(&self) -> Option<&Path> {
        self.options.dir.as_deref()
    }

    /// Returns the same arguments with this job.
    pub(crate) fn of(&self, job: String) -> NamedArgs {
        NamedArgs { name: Some(job), options: JobArgs { job: None, ..self.options.clone() } }
    }
}

/// The job of a command that needs an existing one.
#[derive(Clone, Debug, Args)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    pub(crate) job: NamedArgs,
    /// User of the job; only root may give another user (default: this user; for root, any user)
    #[arg(long, value_name = "USER", conflicts_with = "dir")]
    pub(crate) owner: Option<String>,
}

/// A job's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobDir {
    job: String,
    path: PathBuf,
    /// The user chose its base directory.
    is_chosen: bool,
    /// Set when this process has created the directory.
    made: Arc<OnceLock<()>>,
}

impl JobDir {
    /// Returns the directory of `job` (else of `$TSUMUGI_JOB`, the Slurm job, or `default`) under
    /// `base` (else the user's runtime directory).
    pub(crate) fn new(job: Option<&str>, base: Option<&Path>) -> anyhow::Result<JobDir> {
        let named = || {
            let variables = ["TSUMUGI_JOB", "SLURM_JOB_ID"];
            variables.iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        };
        let job = job.map(String::from).or_else(named).unwrap_or_else(|| "default".into());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if job.is_empty()
            || job.len() > NAME_MAX
            || job.starts_with('.')
            || !job.chars().all(is_plain)
        {
            bail!(
                "{job:?} cannot be a job's name: 1 to {NAME_MAX} letters, digits, '-', '_' and \
                 '.', not starting with '.'"
            );
        }
        let is_chosen = base.is_some();
        let base = base.map_or_else(default_base, Path::to_path_buf);
        let base = std::path::absolute(&base)
            .with_context(|| format!("cannot find {}", base.display()))?;
        let dir = JobDir { path: base.join(&job), job, is_chosen, made: Arc::default() };
        dir.check()?;
        Ok(dir)
    }

    /// Returns the job's directory from a record or a search.
    pub(crate) fn at(path: &Path) -> anyhow::Result<JobDir> {
        let (Some(base), Some(job)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
        else {
            bail!("{} cannot be a job's directory", path.display());
        };
        JobDir::new(Some(job), Some(base))
    }

    /// Refuses a directory that another user controls: the author of a job's state decides what
    /// `down` removes and ends.
    fn check(&self) -> anyhow::Result<()> {
        place::check(&self.path, self.trust())?;
        let user = rustix::process::geteuid().as_raw();
        match std::fs::symlink_metadata(&self.path) {
            Ok(data) if data.uid() != user && !(data.uid() == 0 && data.is_dir()) => bail!(
                "{} belongs to another user (uid {}): root can give its owner with --owner",
                self.path.display(),
                data.uid()
            ),
            _ => Ok(()),
        }
    }

    fn trust(&self) -> Trust {
        if self.is_chosen { Trust::Chosen } else { Trust::Own }
    }

    /// Returns the job's name.
    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the base directory if it is the default one, and empty.
    pub(crate) fn remove_base(&self) {
        if self.path.parent() == Some(default_base().as_path()) {
            let _ = std::fs::remove_dir(default_base());
        }
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates the directory, closed to other users. Fails if it exists.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        if let Some(base) = self.path.parent() {
            place::make_directories(base, 0o700, self.trust())?;
        }
        DirBuilder::new().mode(0o700).create(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => self.there_already(),
            _ => anyhow::Error::new(error).context(format!("cannot make {}", self.path.display())),
        })?;
        self.made.get_or_init(|| ());
        Ok(())
    }

    /// Returns whether this process has created the directory, and so may undo what is in it: of
    /// several `up` with one name at the same time, only one has.
    pub(crate) fn is_made_here(&self) -> bool {
        self.made.get().is_some()
    }

    /// Refuses to create an existing job, before any other check.
    pub(crate) fn refuse_existing(&self) -> anyhow::Result<()> {
        if self.path.exists() { Err(self.there_already()) } else { Ok(()) }
    }

    fn there_already(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "job {} is there already ({}): see `tsumugi status --job {0}`, end it with `tsumugi \
             down --job {0}`, or take another name with --job",
            self.job,
            self.path.display()
        )
    }

    /// Takes the job's lock, which lasts until the file is dropped; `None` if another process has
    /// it, or the job is gone.
    pub(crate) fn try_lock(&self) -> anyhow::Result<Option<File>> {
        let path = self.join("lock");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
        let file = match opened.map_err(io::Error::from) {
            Ok(file) => File::from(file),
            Err(error) if place::is_absent(&error) => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot open {}", path.display()));
            }
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        // Its former holder may have removed the directory in the meantime.
        let is_same = std::fs::metadata(&path)
            .and_then(|there| Ok(there.ino() == file.metadata()?.ino()))
            .unwrap_or(false);
        Ok(is_same.then_some(file))
    }

    /// Takes the job's lock, waiting for it until the deadline.
    pub(crate) fn lock_until(&self, deadline: Instant) -> anyhow::Result<Option<File>> {
        loop {
            if let Some(lock) = self.try_lock()? {
                return Ok(Some(lock));
            }
            if Instant::now() >= deadline || !self.path.exists() {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns `/run/tsumugi` for root, else `$XDG_RUNTIME_DIR/tsumugi`, or `/tmp/tsumugi-UID` without
/// that.
pub(crate) fn default_base() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/tsumugi".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if super::users::is_owned_by(Path::new(&directory), user.as_raw()) => {
            PathBuf::from(directory).join("tsumugi")
        }
        _ => format!("/tmp/tsumugi-{}", user.as_raw()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names that would leave the base directory, or confuse tools, are refused.
    #[test]
    fn names_are_checked() {
        for bad in ["", "a/b", "..", ".hidden", "a b", "ä", &"x".repeat(129)] {
            assert!(JobDir::new(Some(bad), Some(Path::new("/x"))).is_err(), "{bad:?}");
        }
        let dir = JobDir::new(Some("job-1.2_x"), Some(Path::new("/x"))).unwrap();
        assert_eq!(dir.path(), Path::new("/x/job-1.2_x"));
    }

    /// Goal: a job's name can stand alone or after --job, but not both.
    #[test]
    fn a_name_stands_alone_or_after_its_option() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            find: FindArgs,
        }
        let job = |words: &[&str]| {
            let words = ["command"].iter().chain(words);
            let command = <Command as clap::Parser>::try_parse_from(words);
            command.ok().map(|command| command.find.job.job().job)
        };
        for words in [&["j"][..], &["--job", "j"], &["j", "--owner", "root"]] {
            assert_eq!(job(words), Some(Some("j".to_owned())), "{words:?}");
        }
        assert_eq!(job(&[]), Some(None));
        for wrong in [&["j", "--job", "j"][..], &["--job", "j", "k"], &["j", "k"]] {
            assert_eq!(job(wrong), None, "{wrong:?}");
        }
    }

    /// Goal: a lock has one holder at a time, and is void on a removed directory.
    #[test]
    fn lock_has_one_holder() {
        let base = tempfile::tempdir().unwrap();
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        assert!(dir.try_lock().unwrap().is_none(), "no directory, no lock");
        dir.create().unwrap();
        let message = dir.create().unwrap_err().to_string();
        assert!(message.contains("tsumugi down --job j"), "{message}");
        let lock = dir.try_lock().unwrap().unwrap();
        assert!(dir.try_lock().unwrap().is_none());
        drop(lock);
        assert!(dir.try_lock().unwrap().is_some());
    }

    /// Goal: another user's directory, or another user's link, is refused before anything in it is
    /// used.
    #[test]
    fn strangers_directories_are_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let jobs = base.path().join("jobs");
        std::fs::create_dir_all(jobs.join("theirs")).unwrap();
        std::os::unix::fs::chown(jobs.join("theirs"), Some(4711), None).unwrap();
        let refused = JobDir::new(Some("theirs"), Some(&jobs)).unwrap_err().to_string();
        assert!(refused.contains("4711") && refused.contains("--owner"), "{refused}");
        JobDir::new(Some("ours"), Some(&jobs)).unwrap();
    }
}
