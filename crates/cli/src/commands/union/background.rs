//! Going to the background without a fork: the program starts itself with a pipe, whose other end
//! tells it when the mount is up.

use anyhow::Context;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// Set for the one that is to serve.
const VARIABLE: &str = "TSUMUGI_UNION_IN_BACKGROUND";
/// What it says when the mount is up.
const MOUNTED: &[u8] = b"mounted\n";

/// Whether this is the one that is to serve.
pub(super) fn is_inside() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts the server and waits until it is mounted, or has said what is wrong.
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
    // It has written what is wrong to the same error output.
    let status = server.wait().context("cannot wait for the server")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Lets go of the caller: its terminal, its pipes, its directory.
pub(super) fn say_mounted() -> anyhow::Result<()> {
    if !is_inside() {
        return Ok(());
    }
    // Fails for the leader of a process group, which this one is: its own group is enough then.
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
