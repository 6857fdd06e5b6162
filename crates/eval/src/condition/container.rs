//! Containers: an image of this machine's own fio, and whatever here can run it.
//!
//! The image holds byte for byte the fio that runs natively, with the libraries that its loader
//! names, so that the comparison is of the container and of nothing else. The directory with the
//! file is bound to `/data`.

use crate::engine::Stop;
use crate::error::Error;
use crate::experiment::ContainerKind;
use crate::process;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where the directory with the file is inside.
pub(super) const DATA: &str = "/data";
/// Where job files and logs are inside.
pub(super) const SCRATCH: &str = "/scratch";

/// Mounts, then becomes the program: arguments are image, data, scratch, program and its own.
const NAMESPACE_SCRIPT: &str = "mount --rbind \"$2\" \"$1/data\" && \
    mount --rbind \"$3\" \"$1/scratch\" && mount -t proc proc \"$1/proc\" && image=$1 && \
    shift 3 && exec chroot \"$image\" \"$@\"";

/// A runtime with an image that it runs.
#[derive(Clone, Debug)]
pub(super) struct Container {
    kind: ContainerKind,
    runtime: PathBuf,
    image: PathBuf,
    fio: PathBuf,
    digest: String,
}

impl Container {
    /// The first of these kinds that works here, with an image made below `directory`; else why
    /// none does.
    pub(super) fn find(
        kinds: &[ContainerKind],
        directory: &Path,
        scratch: &Path,
    ) -> Result<Self, String> {
        let fio = which("fio").ok_or("fio is not installed")?;
        let image = directory.join("image");
        let digest = make_image(&image, &fio).map_err(|error| format!("no image: {error}"))?;
        let mut complaints = Vec::new();
        for kind in kinds {
            let programs: &[&str] = match kind {
                ContainerKind::Charliecloud => &["ch-run"],
                ContainerKind::Podman => &["podman"],
                ContainerKind::Apptainer => &["apptainer", "singularity"],
                ContainerKind::Namespaces => &["unshare"],
            };
            let Some(runtime) = programs.iter().find_map(|program| which(program)) else {
                complaints.push(format!("{}: not installed", kind.name()));
                continue;
            };
            let container = Self {
                kind: *kind,
                runtime,
                image: image.clone(),
                fio: fio.clone(),
                digest: digest.clone(),
            };
            match container.probe(scratch) {
                Ok(()) => return Ok(container),
                Err(why) => complaints.push(format!("{}: {why}", kind.name())),
            }
        }
        Err(complaints.join("; "))
    }

    /// Runs fio without load and sees whether it can write to the bound directory.
    fn probe(&self, scratch: &Path) -> Result<(), String> {
        let report = format!("--output={SCRATCH}/probe");
        let arguments =
            ["--name=probe", "--ioengine=null", "--size=4k", &report].map(str::to_string);
        let mut command = self.command(scratch, scratch, &arguments);
        let patience = Duration::from_secs(30);
        let done = process::run(&mut command, &Stop::default(), patience, patience)
            .map_err(|error| error.to_string())?;
        let seen = scratch.join("probe");
        if done.status.success() && seen.exists() {
            return fs::remove_file(&seen).map_err(|error| error.to_string());
        }
        let said = if done.stderr.trim().is_empty() { done.stdout } else { done.stderr };
        let said: String = said.trim().chars().take(300).collect();
        Err(format!("{}: {said}", done.status))
    }

    /// What it is, for the report.
    pub(super) fn describe(&self) -> String {
        let mut command = Command::new(&self.runtime);
        command.arg("--version").env("USER", "user");
        let patience = Duration::from_secs(10);
        // Some say it on one output, some on the other.
        let version = process::run(&mut command, &Stop::default(), patience, patience)
            .map(|done| done.stdout + &done.stderr)
            .unwrap_or_default();
        format!(
            "{} {}, the image's fio is the machine's own (BLAKE3 {})",
            self.kind.name(),
            version.lines().next().unwrap_or_default().trim(),
            &self.digest[..16]
        )
    }

    /// A command that runs fio inside.
    pub(super) fn command(&self, data: &Path, scratch: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.runtime);
        let bind = |host: &Path, inside: &str| format!("{}:{inside}", host.display());
        let (data_bind, scratch_bind) = (bind(data, DATA), bind(scratch, SCRATCH));
        match self.kind {
            ContainerKind::Charliecloud => {
                command.args(["-b", &data_bind, "-b", &scratch_bind, "--cd", SCRATCH]);
                command.arg(&self.image).arg("--");
            }
            ContainerKind::Podman => {
                command.args(["run", "--rm", "--network=none", "--log-driver=none"]);
                command.args(["-v", &data_bind, "-v", &scratch_bind, "-w", SCRATCH, "--rootfs"]);
                command.arg(&self.image);
            }
            ContainerKind::Apptainer => {
                command.args(["exec", "--containall", "-B", &data_bind, "-B", &scratch_bind]);
                command.args(["--pwd", SCRATCH]).arg(&self.image);
            }
            ContainerKind::Namespaces => {
                if !rustix::process::geteuid().is_root() {
                    command.args(["--user", "--map-root-user"]);
                }
                command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
                command.args([NAMESPACE_SCRIPT, "sh"]).args([&self.image, data, scratch]);
            }
        }
        command.arg(&self.fio).args(arguments);
        if std::env::var_os("USER").is_none() {
            // Charliecloud wants to know it.
            command.env("USER", "user");
        }
        command
    }
}

fn which(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|path| path.join(program)).find(|path| path.is_file())
}

/// Makes the image; gives the digest of the fio in it, which is the machine's.
fn make_image(image: &Path, fio: &Path) -> Result<String, Error> {
    for name in ["bin", "dev", "proc", "sys", "etc", "tmp", "root", "usr/bin", "data", "scratch"] {
        let path = image.join(name);
        fs::create_dir_all(&path).map_err(Error::io("cannot make", &path))?;
    }
    let user = "root:x:0:0::/root:/bin/sh\n";
    for (name, text) in
        [("passwd", user), ("group", "root:x:0:\n"), ("hosts", ""), ("resolv.conf", "")]
    {
        let path = image.join("etc").join(name);
        fs::write(&path, text).map_err(Error::io("cannot write", &path))?;
    }
    let listed = process::output("ldd", &[&fio.display().to_string()])?;
    let mut files: BTreeSet<&str> =
        listed.split_whitespace().filter(|word| word.starts_with('/')).collect();
    let program = fio.display().to_string();
    files.insert(&program);
    for file in files {
        let target = image.join(file.trim_start_matches('/'));
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(Error::io("cannot make", parent))?;
        }
        fs::copy(file, &target).map_err(Error::io("cannot copy", Path::new(file)))?;
    }
    let inside = image.join(program.trim_start_matches('/'));
    let digest = |path: &Path| {
        let bytes = fs::read(path).map_err(Error::io("cannot read", path))?;
        Ok::<_, Error>(blake3::hash(&bytes).to_hex().to_string())
    };
    let (native, copied) = (digest(fio)?, digest(&inside)?);
    if native != copied {
        return Err(Error::program("fio", "the image's copy differs from the machine's"));
    }
    Ok(copied)
}
