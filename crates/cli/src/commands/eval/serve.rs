//! `tsumugi eval serve`: experiments in a browser.

use anyhow::Context;
use clap::Args;
use eval::messages::Language;
use eval::serve::{Site, Token};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Databases of results, or directories with databases in or below them
    #[arg(value_name = "DB|DIR", default_value = ".")]
    places: Vec<PathBuf>,
    /// Address and port to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Language of the pages [default: each experiment's own]
    #[arg(long, value_parser = super::language, value_name = "en|ja")]
    language: Option<Language>,
}

/// Serves until SIGINT or SIGTERM.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    for place in &args.places {
        std::fs::metadata(place).with_context(|| format!("cannot read {}", place.display()))?;
    }
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen at {}", args.listen))?;
    let address = listener.local_addr().context("cannot read the address of the listener")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for signals")?;
    }
    let site = Site::new(args.places.clone(), args.language);
    let site = if address.ip().is_loopback() {
        println!("http://{address}/");
        site
    } else {
        let token = Token::generate();
        println!("http://{address}/{}", token.query());
        eprintln!(
            "The token in this address gives access to the pages; it changes with each start. HTTP \
             is not encrypted."
        );
        site.with_token(token)
    };
    site.serve(&listener, &stop)?;
    Ok(ExitCode::SUCCESS)
}
