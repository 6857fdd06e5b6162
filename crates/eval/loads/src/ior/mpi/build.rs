//! Building the shim with an MPI's own compiler.

use super::MpiKind;
use crate::ior::crew::IorError;
use crate::process;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is built, by name; the first is given to the compiler.
const SOURCES: [(&str, &str); 4] = [
    ("mpi_rank.c", include_str!("../../../shim/mpi_rank.c")),
    ("base.h", include_str!("../../../shim/base.h")),
    ("phase.h", include_str!("../../../shim/phase.h")),
    ("data.h", include_str!("../../../shim/data.h")),
];
const UNFINISHED_NAME: &str = "unfinished";
const PROGRAM_NAME: &str = "mpi_rank";
/// How long ranks wait for the one of their node that builds.
const BUILD_PATIENCE: Duration = Duration::from_mins(1);
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// A built shim; its directory goes with it.
#[derive(Debug)]
pub struct Shim {
    directory: PathBuf,
    is_ours: bool,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> IorError {
    move |cause| IorError::File { what, path: path.into(), cause }
}

impl Shim {
    /// Builds it in a directory of its own below `parent`, which has to be the same on all nodes.
    pub fn build(kind: MpiKind, parent: &Path) -> Result<Self, IorError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("tsumugi-ior-{}-{}", std::process::id(), since.as_nanos());
        let directory = parent.join(name);
        make_private(&directory).map_err(failed("cannot make", &directory))?;
        let shim = Self { directory, is_ours: true };
        shim.compile(kind)?;
        Ok(shim)
    }

    /// Builds it for all ranks of this node: the first of them builds, the others wait.
    pub fn build_once(kind: MpiKind, directory: PathBuf, builds: bool) -> Result<Self, IorError> {
        let shim = Self { directory, is_ours: builds };
        if builds {
            match make_private(&shim.directory) {
                // Left by an earlier job of ours whose launcher had the same number.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(failed("cannot make", &shim.directory))?,
            }
            shim.check_private()?;
            shim.compile(kind)?;
            return Ok(shim);
        }
        let begun = Instant::now();
        while !shim.path().exists() {
            if begun.elapsed() > BUILD_PATIENCE {
                let why = format!("{} was not built within a minute", shim.path().display());
                return Err(IorError::NotAvailable(why));
            }
            std::thread::sleep(POLL_PERIOD);
        }
        shim.check_private()?;
        Ok(shim)
    }

    /// No other user may have put a program there.
    fn check_private(&self) -> Result<(), IorError> {
        let stat =
            self.directory.symlink_metadata().map_err(failed("cannot use", &self.directory))?;
        let is_ours = stat.uid() == rustix::process::geteuid().as_raw();
        if stat.is_dir() && is_ours && stat.mode().trailing_zeros() >= 6 {
            return Ok(());
        }
        let why = format!("{} does not belong to this user alone", self.directory.display());
        Err(IorError::NotAvailable(why))
    }

    fn compile(&self, kind: MpiKind) -> Result<(), IorError> {
        for (name, text) in SOURCES {
            let path = self.directory.join(name);
            std::fs::write(&path, text).map_err(failed("cannot write", &path))?;
        }
        let source = self.directory.join(SOURCES[0].0);
        let compiler = kind.find(kind.compilers())?;
        let unfinished = self.directory.join(UNFINISHED_NAME);
        let mut command = Command::new(compiler);
        command.args(["-std=gnu99", "-O2", "-o"]).arg(&unfinished).arg(&source);
        process::succeed(&mut command).map_err(|error| {
            IorError::NotAvailable(format!("{}: {error}", process::shown(&command)))
        })?;
        // Those who wait see all of it or nothing.
        let path = self.path();
        std::fs::rename(&unfinished, &path).map_err(failed("cannot rename", &path))
    }

    /// The program.
    pub fn path(&self) -> PathBuf {
        self.directory.join(PROGRAM_NAME)
    }
}

fn make_private(directory: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(directory)
}

impl Drop for Shim {
    fn drop(&mut self) {
        if self.is_ours {
            // Only what was made here; what else is there keeps the directory.
            let made = SOURCES.iter().map(|(name, _)| *name);
            for name in made.chain([PROGRAM_NAME, UNFINISHED_NAME]) {
                let _ = std::fs::remove_file(self.directory.join(name));
            }
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}
