//! The steps by which a host comes to a namespace, for the report: discovery, and connecting with the
//! time of each step.

use loads::place::Fabric;
use loads::process;
use std::path::Path;

/// What `tsumugi nvme` says of discovery and connection, or why there is nothing to say.
pub(super) fn steps(program: &Path, fabric: &Fabric) -> String {
    let program = program.display().to_string();
    let said = |command: &str, words: &[String]| {
        let mut all = vec!["nvme".to_string(), command.into()];
        all.extend_from_slice(words);
        let words: Vec<&str> = all.iter().map(String::as_str).collect();
        process::output(&program, &words).unwrap_or_else(|error| error.to_string())
    };
    let arguments = fabric.reach();
    let discovered = said("discover", &arguments);
    let discovered = discovered.lines().next().unwrap_or_default();
    let mut with_name = arguments;
    with_name.extend(["-n".into(), fabric.subsystem.nqn.clone()]);
    let connected = said("connect-test", &with_name);
    format!("discovery: {discovered}; connection: {}", lines(&connected))
}

/// Lines in one, with single blanks.
fn lines(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a table becomes a sentence.
    #[test]
    fn tables_become_sentences() {
        assert_eq!(
            lines("Connect       292.6 us  ok\n\n  enable  1 us ok\n"),
            "Connect 292.6 us ok, enable 1 us ok"
        );
    }
}
