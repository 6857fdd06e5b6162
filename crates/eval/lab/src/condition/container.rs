//! Containers: an image of this machine's own programs, and whatever here can run it.
//!
//! The image holds byte for byte the programs that run natively, with the libraries that their loader
//! names, so that the comparison is of the container and of nothing else. The directory with the
//! file is bound to `/data`.

use crate::cpu::Group;
use crate::own::Owner;
use base::Error;
use base::Stop;
use loads::level::ContainerKind;
use loads::process;
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where the directory with the file is inside.
pub(super) const DATA: &str = "/data";
/// In each image, to see whether it works.
const SHELL: &str = "sh";
/// Where job files and logs are inside.
pub(super) const SCRATCH: &str = "/scratch";
/// What Podman is tried with where the OCI runtime that it is configured for does not work.
const RUNC: &str = "runc";
/// Podman lowers its own limits to these, and cannot give its containers more.
const FILES_MAX: u64 = 1 << 20;
const PROCESSES_MAX: u64 = 32_768;

/// Mounts, then becomes the program: arguments are image, data, scratch, program and its own.
const NAMESPACE_SCRIPT: &str = "mount --rbind \"$2\" \"$1/data\" && \
    mount --rbind \"$3\" \"$1/scratch\" && mount -t proc proc \"$1/proc\" && image=$1 && \
    shift 3 && exec chroot \"$image\" \"$@\"";

/// A runtime with an image that it runs.
#[derive(Clone, Debug)]
pub(super) struct Container {
    kind: ContainerKind,
    runtime: PathBuf,
    /// The OCI runtime, where it is not the one that the runtime is configured for.
    oci: Option<&'static str>,
    image: PathBuf,
    /// What the image holds, by the names that loads call them.
    programs: BTreeMap<PathBuf, Program>,
    owner: Owner,
    /// Counts its CPU time.
    group: Option<Group>,
}

/// A program in the image.
#[derive(Clone, Debug)]
struct Program {
    path: PathBuf,
    digest: String,
}

impl Container {
    /// The first of these kinds that works here, with an image of these programs made below
    /// `directory`; else why none does.
    pub(super) fn find(
        kinds: &[ContainerKind],
        directory: &Path,
        scratch: &Path,
        mut wanted: Vec<PathBuf>,
        owner: &Owner,
    ) -> Result<Self, String> {
        let image = directory.join("image");
        make_root(&image).map_err(|error| format!("no image: {error}"))?;
        wanted.push(SHELL.into());
        let mut programs = BTreeMap::new();
        for name in wanted {
            let path =
                which(&name).ok_or_else(|| format!("{} is not installed", name.display()))?;
            let digest =
                add_program(&image, &path).map_err(|error| format!("no image: {error}"))?;
            programs.insert(name, Program { path, digest });
        }
        let mut complaints = Vec::new();
        for kind in kinds {
            let runtimes: &[&str] = match kind {
                ContainerKind::Charliecloud => &["ch-run"],
                ContainerKind::Podman => &["podman"],
                ContainerKind::Docker => &["docker"],
                ContainerKind::Apptainer => &["apptainer", "singularity"],
                ContainerKind::Namespaces => &["unshare"],
            };
            let Some(runtime) = runtimes.iter().find_map(|name| which(Path::new(name))) else {
                complaints.push(format!("{}: not installed", kind.name()));
                continue;
            };
            let mut container = Self {
                kind: *kind,
                runtime,
                oci: None,
                image: image.clone(),
                programs: programs.clone(),
                owner: owner.clone(),
                group: None,
            };
            let tried = container.import().and_then(|()| container.probe(scratch));
            let Err(why) = tried else { return Ok(container) };
            complaints.push(format!("{}: {why}", kind.name()));
            // crun refuses machines with control groups of both versions.
            if *kind == ContainerKind::Podman && which(Path::new(RUNC)).is_some() {
                container.oci = Some(RUNC);
                let Err(why) = container.probe(scratch) else { return Ok(container) };
                complaints.push(format!("{} with {RUNC}: {why}", kind.name()));
            }
        }
        Err(complaints.join("; "))
    }

    /// Has its CPU time counted by a group of ours; why that cannot be, if it cannot.
    pub(super) fn count(&mut self, name: &str, scratch: &Path) -> Result<String, String> {
        let group = Group::make(name)?;
        let leave = group.leave();
        self.group = Some(group);
        let counted = self.probe(scratch).and_then(|()| {
            let used = self.group.as_ref().and_then(|group| group.cgroup().used());
            let is_counted = used.is_some_and(|used| !used.is_zero());
            is_counted.then_some(()).ok_or_else(|| "its processes run elsewhere".to_string())
        });
        if let Err(why) = counted {
            self.group = None;
            // What cannot be removed is empty and harmless.
            let _ = process::output("sh", &["-c", &leave]);
            return Err(why);
        }
        Ok(leave)
    }

    /// What counts its CPU time.
    pub(super) fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Makes the image known to a runtime that keeps images of its own.
    fn import(&self) -> Result<(), String> {
        if self.kind != ContainerKind::Docker {
            return Ok(());
        }
        let image = self.image.display();
        let runtime = self.runtime.display();
        let script = format!(
            "tar -C '{image}' -c . | '{runtime}' import --change 'LABEL {}' - {} >/dev/null",
            self.owner.label(),
            self.owner.image()
        );
        process::output("sh", &["-c", &script]).map(drop).map_err(|error| error.to_string())
    }

    /// The runtime, if it is one whose containers or images outlive the process that asked for them.
    pub(super) fn keeps_containers(&self) -> Option<&Path> {
        let keeps = matches!(self.kind, ContainerKind::Podman | ContainerKind::Docker);
        keeps.then_some(self.runtime.as_path())
    }

    /// Shell command that removes what the runtime keeps at the end.
    pub(super) fn leave(&self) -> Option<String> {
        let runtime = self.runtime.display();
        (self.kind == ContainerKind::Docker)
            .then(|| format!("'{runtime}' image rm -f {} >/dev/null", self.owner.image()))
    }

    /// Runs a shell and sees whether it can write to the bound directory.
    fn probe(&self, scratch: &Path) -> Result<(), String> {
        let arguments = ["-c".to_string(), format!("echo works > {SCRATCH}/probe")];
        let mut command = self.command(&scratch.join("probe"), scratch, SHELL, &arguments);
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
        let programs: Vec<String> = self
            .programs
            .iter()
            .filter(|(name, _)| name.as_path() != Path::new(SHELL))
            .map(|(name, program)| {
                let name = name.file_name().unwrap_or_default().display();
                format!("{name} (BLAKE3 {})", &program.digest[..16])
            })
            .collect();
        format!(
            "{} {}{}, the image has the machine's own {}",
            self.kind.name(),
            version.lines().next().unwrap_or_default().trim(),
            self.oci.map_or(String::new(), |name| format!(" with {name}")),
            programs.join(", ")
        )
    }

    /// A command that runs a program inside, where the directory of `file` is bound.
    pub(super) fn command(
        &self,
        file: &Path,
        scratch: &Path,
        program: &str,
        arguments: &[String],
    ) -> Command {
        let mut command = Command::new(&self.runtime);
        command.args(self.oci.iter().flat_map(|name| ["--runtime", name]));
        let bind = |host: &Path, inside: &str| format!("{}:{inside}", host.display());
        let data = file.parent().unwrap_or(Path::new("/"));
        let (data_bind, scratch_bind) = (bind(data, DATA), bind(scratch, SCRATCH));
        if matches!(self.kind, ContainerKind::Podman | ContainerKind::Docker) {
            self.run_options(&mut command);
            command.args(["-v", &data_bind, "-v", &scratch_bind, "-w", SCRATCH]);
            if is_block_device(file) {
                // Else the control group refuses it, wherever its name is bound.
                command.arg("--device").arg(file);
            }
        }
        match self.kind {
            ContainerKind::Charliecloud => {
                command.args(["-b", &data_bind, "-b", &scratch_bind, "--cd", SCRATCH]);
                command.arg(&self.image).arg("--");
            }
            ContainerKind::Podman => {
                command.arg("--rootfs").arg(&self.image);
            }
            ContainerKind::Docker => {
                command.arg(self.owner.image());
            }
            ContainerKind::Apptainer => {
                // Root's containers would ask for all capabilities, which not every machine's root has;
                // an empty home would hide programs that lie in the user's.
                command.args(["exec", "--containall", "--no-home", "--no-privs"]);
                command.args(["-B", &data_bind, "-B", &scratch_bind]);
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
        let known = self.programs.get(Path::new(program));
        command.arg(known.map_or(Path::new(program), |known| known.path.as_path()));
        command.args(arguments);
        if std::env::var_os("USER").is_none() {
            // Charliecloud wants to know it.
            command.env("USER", "user");
        }
        match &self.group {
            Some(group) if self.keeps_containers().is_none() => group.enter(&command),
            _ => command,
        }
    }

    /// What Podman and Docker have in common.
    fn run_options(&self, command: &mut Command) {
        // Interactive: what is told on our input, and its end, reaches the program.
        command.args(["run", "--rm", "--interactive", "--network=none", "--log-driver=none"]);
        command.args(["--label", &self.owner.label()]);
        // Their own limits are higher than those of many a machine, which not even root may raise then.
        for (name, resource, most) in
            [("nofile", Resource::Nofile, FILES_MAX), ("nproc", Resource::Nproc, PROCESSES_MAX)]
        {
            if let Some(own) = getrlimit(resource).maximum {
                let most = own.min(most);
                command.arg(format!("--ulimit={name}={most}:{most}"));
            }
        }
        if let Some(group) = &self.group {
            command.args(["--cgroup-parent", group.path()]);
        }
    }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|found| found.file_type().is_block_device())
}

/// A program by its path, or by its name in `PATH`.
pub(super) fn which(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return program.is_file().then(|| program.into());
    }
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|path| path.join(program)).find(|path| path.is_file())
}

/// Makes an image with nothing to run.
fn make_root(image: &Path) -> Result<(), Error> {
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
    Ok(())
}

/// Adds a program with its libraries; gives the digest of the copy, which is the machine's.
fn add_program(image: &Path, program: &Path) -> Result<String, Error> {
    let shown = program.display().to_string();
    // A program without libraries makes ldd fail.
    let listed = process::output("ldd", &[&shown]).unwrap_or_default();
    let mut files: BTreeSet<&str> =
        listed.split_whitespace().filter(|word| word.starts_with('/')).collect();
    files.insert(&shown);
    for file in files {
        let file = file.trim_end_matches(':');
        let target = image.join(file.trim_start_matches('/'));
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(Error::io("cannot make", parent))?;
        }
        fs::copy(file, &target).map_err(Error::io("cannot copy", Path::new(file)))?;
    }
    let inside = image.join(shown.trim_start_matches('/'));
    let digest = |path: &Path| {
        let bytes = fs::read(path).map_err(Error::io("cannot read", path))?;
        Ok::<_, Error>(blake3::hash(&bytes).to_hex().to_string())
    };
    let (native, copied) = (digest(program)?, digest(&inside)?);
    if native != copied {
        return Err(Error::program(&shown, "the image's copy differs from the machine's"));
    }
    Ok(copied)
}
