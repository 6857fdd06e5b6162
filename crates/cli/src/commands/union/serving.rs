//! The processes of `tsumugi union`: the one that passes a mount to the user's server, the server
//! itself, and the keeper that starts the server. Like the background process they are this program
//! under other names. They get sockets as standard input and output, because nothing forks.

use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use ::union::{Ending, HandOver, Options};
use signal_hook::consts::SIGHUP;

use crate::signals;

/// The names under which the processes start.
pub(super) const KEEPER: &[u8] = b"tsumugi-union-keeper";
pub(super) const SERVER: &[u8] = b"tsumugi-union-server";

/// Passes a mount to the user's server; `false` if the mount needs a process of its own.
pub(super) fn hand_over(
    texts: &[OsString],
    options: &Options,
    mountpoint: &Path,
) -> anyhow::Result<bool> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut text = texts.join(OsStr::new(","));
    if let Some(source) = &options.source {
        text.push(",fsname=");
        text.push(source.replace('\\', "\\\\").replace(',', "\\,"));
    }
    let start = |listener: OwnedFd| {
        let keeper =
            process(&program, KEEPER, listener).stdout(Stdio::null()).process_group(0).spawn()?;
        // The keeper lives on; this process does not wait for it.
        drop(keeper);
        Ok(())
    };
    match ::union::hand_over(text.as_bytes(), options, mountpoint, start)? {
        HandOver::Served => Ok(true),
        HandOver::Alone(reason) => {
            tracing::debug!(reason, "not by the user's server");
            Ok(false)
        }
    }
}

/// Returns a command that starts this program under another name. The name is its first argument
/// too, because the path may belong to a new version by then.
fn process(program: &Path, name: &[u8], input: OwnedFd) -> Command {
    let mut command = Command::new(program);
    command.arg0(OsStr::from_bytes(name)).arg(program).current_dir("/").stdin(input);
    if std::env::var_os("TSUMUGI_LOG").is_none() {
        command.stderr(Stdio::null());
    }
    command
}

/// Runs the keeper.
pub(super) fn keep(mut args: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let program = args.next().context("only `tsumugi union` may start the keeper")?;
    crate::descriptors::raise_limit();
    // Fails for the leader of a process group, which this process is: its own group is enough then.
    let _ = rustix::process::setsid();
    let listener = own(std::io::stdin())?;
    let start = |socket: OwnedFd| -> io::Result<Child> {
        let listener = listener.try_clone()?;
        process(Path::new(&program), SERVER, listener).stdout(socket).spawn()
    };
    ::union::run_keeper(start).context("the keeper of unions ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the server.
pub(super) fn serve() -> anyhow::Result<ExitCode> {
    crate::descriptors::raise_limit();
    // New files get the mode that the caller asked for.
    rustix::process::umask(rustix::fs::Mode::empty());
    let listener = own(std::io::stdin())?;
    let keeper = own(std::io::stdout())?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = null.context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).context("cannot close the input")?;
    rustix::stdio::dup2_stdout(&null).context("cannot close the output")?;
    let mut signals = signals::watch(&[SIGHUP])?;
    let (sender, commands) = reactor::mailbox::channel(4);
    let mut runtime =
        reactor::Runtime::new(&reactor::Config::default()).context("cannot start the reactor")?;
    let ending = runtime.block_on(async {
        drop(reactor::spawn(async move {
            loop {
                let command = match signals.recv().await {
                    SIGHUP => ::union::Command::Replace,
                    _ => ::union::Command::End,
                };
                // If the queue is full, the next command would add nothing new.
                let _ = sender.try_send(command);
            }
        }));
        ::union::run_server(listener, keeper, commands).await
    });
    match ending.context("the server of unions ended")? {
        // Ends as if killed: takes nothing down, because the successor continues.
        Ending::Replaced => std::process::exit(0),
        Ending::Idle | Ending::Told => Ok(ExitCode::SUCCESS),
    }
}

fn own(fd: impl AsFd) -> anyhow::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned().context("cannot take the socket that was passed")
}
