//! Experiments in a browser: stored and running ones.
//!
//! The server makes a page from the databases on request, and keeps it until they change. Addresses name
//! experiments that were found below the given places and a fixed set of files of each: no path of a request
//! ever reaches the file system. Databases are opened read-only, so a run never waits for a reader.

mod catalog;
mod http;
mod pages;
mod token;

use crate::error::Error;
use crate::report::Report;
use base::messages::Language;
use catalog::{Entry, Stamp};
use http::{Body, Request, Response};
use lab::live::Life;
use lab::store::Store;
use std::collections::VecDeque;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
pub use token::Token;

/// The largest number of cached pages.
const KEPT_MAX: usize = 64;
/// Seconds after which the page of a run reloads.
const REFRESH_SECONDS: u32 = 5;

/// The key of a cached page: experiment, part, language, and the state of its files.
type Key = (String, String, Language, Stamp);

/// The site.
#[derive(Debug)]
pub struct Site {
    places: Vec<PathBuf>,
    language: Option<Language>,
    /// The token that a request needs.
    token: Option<Token>,
    kept: Mutex<VecDeque<(Key, Arc<Vec<u8>>)>>,
}

impl Site {
    /// Makes a site of the results at and below these places; `language` is that of its pages, if not each
    /// experiment's own.
    pub fn new(places: Vec<PathBuf>, language: Option<Language>) -> Self {
        Self { places, language, token: None, kept: Mutex::default() }
    }

    /// Limits the site to requests with a token.
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Answers requests until `stop` is set.
    pub fn serve(self, listener: &TcpListener, stop: &AtomicBool) -> Result<(), Error> {
        let site = Arc::new(self);
        http::serve(listener, stop, &http::LIMITS, move |request| site.answer(request))
            .map_err(|cause| Error::Results(format!("cannot serve: {cause}")))
    }

    /// Answers a request.
    fn answer(&self, request: &Request) -> Response {
        if let Some(refusal) = self.token.as_ref().and_then(|token| token.refusal(request)) {
            return refusal;
        }
        let wanted = request.query("language").and_then(Language::of_code);
        let language = wanted.or(self.language);
        let Some(path) = request.path.strip_prefix('/') else { return Response::not_found() };
        if path.is_empty() {
            return self.index(language.unwrap_or_default());
        }
        let Some((id, what)) = path.split_once('/') else { return Response::not_found() };
        let Some(entry) = catalog::find(&self.places, id) else { return Response::not_found() };
        match self.of_entry(&entry, what, language) {
            Ok(Some(response)) => response,
            Ok(None) => Response::not_found(),
            Err(error) => pages::failed(language.unwrap_or_default(), &error),
        }
    }

    fn index(&self, language: Language) -> Response {
        let entries = catalog::entries(&self.places);
        let mut rows = Vec::new();
        for entry in &entries.found {
            let row =
                self.keep(entry, "row", language, || Ok(pages::row(entry, language)?.into_bytes()));
            rows.push(match row {
                Ok(row) => String::from_utf8_lossy(&row).into_owned(),
                Err(error) => pages::failed_row(entry, &error),
            });
        }
        let is_live = entries.found.iter().any(|entry| entry.life == Life::Running);
        Response::page(pages::index(&rows, entries.is_cut, is_live, language))
    }

    /// Answers a request for an experiment; `None` if there is no such page.
    fn of_entry(
        &self,
        entry: &Entry,
        what: &str,
        language: Option<Language>,
    ) -> Result<Option<Response>, Error> {
        let store = || Store::open_to_read(&entry.database);
        // The language of the experiment is known from its file alone.
        let language = match language {
            Some(language) => language,
            None => store()?.plan()?.experiment.language,
        };
        let report = || Report::in_language(&store()?, Some(language));
        let keep = |make: &dyn Fn() -> Result<Vec<u8>, Error>| {
            self.keep(entry, what, language, make).map(Body::Kept)
        };
        let is_live = entry.life == Life::Running;
        let (kind, body) = match what {
            "" if is_live => {
                return Ok(Some(Response::page(pages::live(entry, &store()?, language)?)));
            }
            "" | "report" => {
                let made = || {
                    let is_waiting = store()?.is_waiting()?;
                    Ok(pages::report(entry, &report()?, is_waiting).into_bytes())
                };
                ("text/html; charset=utf-8", keep(&made)?)
            }
            "report.md" => {
                ("text/markdown; charset=utf-8", keep(&|| Ok(report()?.markdown().into_bytes()))?)
            }
            "results.csv" => {
                ("text/csv; charset=utf-8", keep(&|| Ok(report()?.csv().into_bytes()))?)
            }
            "results.json" => ("application/json", keep(&|| Ok(report()?.json()?.into_bytes()))?),
            "experiment.toml" => {
                ("application/toml", keep(&|| Ok(store()?.plan()?.experiment.text.into_bytes()))?)
            }
            "results.sqlite" => ("application/vnd.sqlite3", Body::File(store()?.copy()?)),
            chart => match self.chart(entry, chart, language)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let is_page = kind.starts_with("text/html");
        let download = (!is_page && !kind.starts_with("image/")).then(|| what.to_string());
        Ok(Some(Response { status: 200, kind, body, download, moved: None }))
    }

    /// Returns a chart by the name of its file: `charts/NAME.svg` or `.png`.
    fn chart(
        &self,
        entry: &Entry,
        name: &str,
        language: Language,
    ) -> Result<Option<(&'static str, Body)>, Error> {
        let Some(name) = name.strip_prefix("charts/") else { return Ok(None) };
        let Some((stem, ending)) = name.rsplit_once('.') else { return Ok(None) };
        let kind = match ending {
            "svg" => "image/svg+xml",
            "png" => "image/png",
            _ => return Ok(None),
        };
        let report = Report::in_language(&Store::open_to_read(&entry.database)?, Some(language))?;
        let Some(figure) = report.figures.iter().find(|figure| figure.name == stem) else {
            return Ok(None);
        };
        let made = || match ending {
            "svg" => Ok(figure.svg.clone().into_bytes()),
            _ => figure.png(),
        };
        Ok(Some((kind, Body::Kept(self.keep(entry, name, language, made)?))))
    }

    /// Returns a page that was made from the same state of the files, or makes it.
    fn keep(
        &self,
        entry: &Entry,
        what: &str,
        language: Language,
        make: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<Vec<u8>>, Error> {
        let key = (entry.id.clone(), what.to_string(), language, entry.stamp);
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = lock().iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(page));
        }
        let page = Arc::new(make()?);
        let mut kept = lock();
        kept.retain(|(known, _)| (&known.0, &known.1, known.2) != (&key.0, &key.1, key.2));
        kept.push_back((key, Arc::clone(&page)));
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests;
