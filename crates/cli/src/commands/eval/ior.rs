//! `tsumugi eval ior`: runs IOR scripts as they are.

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eval::engine::ior::{Compat, Parameters, Settings, parse, run as run_test, summary};
use std::path::PathBuf;
use std::process::ExitCode;

/// Whose meaning a script gets.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Version {
    /// IOR 2.10.3
    #[value(name = "2.10")]
    Old,
    /// IOR 4
    #[value(name = "4")]
    New,
}

#[derive(Debug, Args)]
pub(super) struct IorArgs {
    /// Script (IOR START … RUN … IOR STOP), of IOR 2.10.3 or 4
    #[arg(short = 'f', long, value_name = "SCRIPT")]
    script: PathBuf,
    /// Ranks: threads of this process
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// A setting before the script's own, as in a script; may be repeated
    #[arg(short = 'O', long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// Whose meaning counts where the versions differ [default: 2.10 if the script has keywords
    /// that only it knows]
    #[arg(long, value_enum, value_name = "VERSION")]
    ior_compat: Option<Version>,
}

/// Runs all tests of a script.
pub(super) fn run(args: &IorArgs) -> anyhow::Result<ExitCode> {
    let name = args.script.display();
    let text =
        std::fs::read_to_string(&args.script).with_context(|| format!("cannot read {name}"))?;
    let mut defaults = Settings::default();
    for option in &args.options {
        let Some((keyword, value)) = option.split_once('=') else {
            bail!("--option {option}: write KEY=VALUE");
        };
        defaults.set(keyword.trim(), value.trim()).map_err(anyhow::Error::msg)?;
    }
    let compat = args.ior_compat.map(|version| match version {
        Version::Old => Compat::V2,
        Version::New => Compat::V4,
    });
    let script = parse(&text, &defaults, compat).with_context(|| name.to_string())?;
    let meaning = if script.compat == Compat::V2 { "2.10.3" } else { "4" };
    println!("{} tests, read as IOR {meaning} does", script.tests.len());
    for note in &script.notes {
        println!("note: {note}");
    }
    let mut errors = 0;
    for (index, settings) in script.tests.iter().enumerate() {
        let (parameters, notes) = Parameters::new(settings, args.ranks.into(), script.compat)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("test {}", index + 1))?;
        println!("\ntest {}", index + 1);
        for note in notes {
            println!("note: {note}");
        }
        let measured = run_test(&parameters)?;
        errors += measured.iter().map(|it| it.errors).sum::<u64>();
        print!("{}", summary(&parameters, script.compat, &measured));
    }
    if errors > 0 {
        bail!("{errors} words of data are not what was written");
    }
    Ok(ExitCode::SUCCESS)
}
