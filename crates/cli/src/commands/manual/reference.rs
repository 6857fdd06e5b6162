//! The page docs/commands.md: every command with its arguments, examples and exit codes, from the
//! definitions that the program itself parses.

use super::super::Cli;
use clap::builder::Str;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write;

const HEAD: &str = "\
# Commands

Every command with its arguments, as `--help` shows them. `make reference` writes this page; do not edit it. See also \
[environment variables, exit codes and JSON](interface.md).
";

/// Arguments that every command has. The page explains them once or not at all.
const COMMON: [&str; 3] = ["help", "version", "engine"];

/// Returns the page.
pub(super) fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page = String::from(HEAD);
    add(&mut page, &mut command, 1);
    page
}

/// Adds a command and the commands below it.
fn add(page: &mut String, command: &mut Command, level: usize) {
    // Headings below the third level would all look alike.
    let heading = "#".repeat((level + 1).min(3));
    let name = command.get_bin_name().unwrap_or("tsumugi").to_owned();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let text = format!("\n{heading} {name}\n\n{}\n\n```text\n{usage}\n```\n", sentence(&about));
    page.push_str(&text);
    let is_first = level == 1;
    let shown = |arg: &&Arg| {
        let is_common = COMMON.contains(&arg.get_id().as_str());
        !arg.is_hide_set() && (!is_common || (is_first && arg.get_id() == "engine"))
    };
    let rows: Vec<String> = command.get_arguments().filter(shown).map(row).collect();
    if !rows.is_empty() {
        let _ = write!(page, "\n| argument | meaning |\n| --- | --- |\n{}", rows.concat());
    }
    if let Some(help) = command.get_after_help() {
        add_help(page, &help.to_string());
    }
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            add(page, inner, level + 1);
        }
    }
}

/// Adds the text below the arguments: indented lines unchanged, other lines as paragraphs.
fn add_help(page: &mut String, help: &str) {
    let (mut is_code, mut is_paragraph) = (false, false);
    for line in help.trim().lines() {
        let is_indented = line.starts_with(' ');
        if is_code && !is_indented {
            page.push_str("```\n");
        } else if is_indented && !is_code {
            page.push_str("\n```text\n");
        }
        if !is_indented && !is_paragraph && !line.is_empty() {
            page.push('\n');
        }
        if !line.is_empty() {
            page.push_str(line);
            page.push('\n');
        }
        is_code = is_indented;
        is_paragraph = !is_indented && !line.is_empty();
    }
    if is_code {
        page.push_str("```\n");
    }
}

/// Returns the text with a full stop at its end.
fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// Returns the row of an argument in the table.
fn row(arg: &Arg) -> String {
    let mut meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        let _ = write!(meaning, " (one of {})", values.join(", "));
    }
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        let _ = write!(meaning, " [default: {}]", defaults.join(", "));
    }
    let meaning = meaning.replace('\n', " ").replace('|', "\\|").replace('<', "&lt;");
    format!("| {} | {meaning} |\n", signature(arg))
}

/// Returns an argument as the user writes it on the command line.
fn signature(arg: &Arg) -> String {
    let names: Vec<&str> =
        arg.get_value_names().unwrap_or_default().iter().map(Str::as_str).collect();
    let value = if arg.get_action().takes_values() { names.join(" ") } else { String::new() };
    let flags: Vec<String> = arg
        .get_short()
        .map(|short| format!("-{short}"))
        .into_iter()
        .chain(arg.get_long().map(|long| format!("--{long}")))
        .collect();
    let text = format!("{} {value}", flags.join(", "));
    format!("`{}`", text.trim().replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::page;

    /// Goal: docs/commands.md matches the present definitions.
    #[test]
    fn the_page_is_current() {
        let written = include_str!("../../../../../docs/commands.md");
        let page = page();
        let different = written.lines().zip(page.lines()).find(|(old, new)| old != new);
        assert!(
            written == page,
            "run `make reference`: docs/commands.md is old, from {different:?}"
        );
    }
}
