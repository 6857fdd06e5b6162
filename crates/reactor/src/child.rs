//! Programs that this process starts.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes a program start in a session of its own, without a controlling terminal. A program of
/// another user could otherwise open the terminal of this process and type into it.
///
/// The program has left this session before it is executed: from then on its user can stop and
/// trace it.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    let leave = || Ok(rustix::process::setsid().map(drop)?);
    // SAFETY: the closure makes one system call. It allocates nothing and takes no lock, so it may
    // run between fork and exec.
    unsafe { command.pre_exec(leave) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the program is in another session than this process, and has no terminal.
    #[test]
    fn programs_leave_the_session() {
        let said = in_own_session(Command::new("cat").arg("/proc/self/stat")).output();
        let said = said.expect("it runs").stdout;
        let said = String::from_utf8(said).expect("text");
        // The fields after the command's name: state, parent, group, session, terminal.
        let fields: Vec<_> = said.split(' ').skip(2).take(5).collect();
        let own = rustix::process::getsid(None).expect("a session").as_raw_nonzero();
        assert_ne!(fields[3], own.to_string(), "{said}");
        assert_eq!(fields[4], "0", "{said}");
    }
}
