//! Going to the background without a fork: the program starts itself with a pipe, through which the
//! new process reports that the mount is up.

use anyhow::Context;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// Set in the environment of the background process.
const VARIABLE: &str = "TSUMUGI_UNION_IN_BACKGROUND";
/// The report of the background process when the mount is up.
const MOUNTED: &[u8] = b"mounted\n";

/// Returns whether this is the background process.
pub(super) fn is_inside() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts the background process, and waits until it has mounted the union or failed.
pub(super) fn start() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut args = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let mut server = command
        .args(args)
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start the server")?;
    let mut said = Vec::new();
    if let Some(mut output) = server.stdout.take() {
        output.read_to_end(&mut said).context("cannot read from the server")?;
    }
    if said == MOUNTED {
        return Ok(ExitCode::SUCCESS);
    }
    // The process has written the reason to the same standard error.
    let status = server.wait().context("cannot wait for the server")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Reports the mount, and detaches this process from its caller: from its terminal, pipes and
/// directory.
pub(super) fn say_mounted() -> anyhow::Result<()> {
    if !is_inside() {
        return Ok(());
    }
    // Fails for the leader of a process group, which this process is: its own group is enough then.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/").context("cannot leave the working directory")?;
    let mut output = std::io::stdout();
    output.write_all(MOUNTED).and_then(|()| output.flush()).context("cannot report the mount")?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = null.context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).context("cannot close the input")?;
    rustix::stdio::dup2_stdout(&null).context("cannot close the output")?;
    if std::env::var_os("TSUMUGI_LOG").is_none() {
        rustix::stdio::dup2_stderr(&null).context("cannot close the error output")?;
    }
    Ok(())
}
