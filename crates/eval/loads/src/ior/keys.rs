//! Loads and levels of IOR, from the keys of a file.

use super::experiment::{IorLevel, IorLoad, IorOptions, check_options};
use super::mpi::MpiKind;
use super::stripe::Stripe;
use crate::keys::Table;
use crate::level::Setting;
use crate::metric::Metric;
use crate::workload::Load;
use base::{Error, units};
use std::collections::BTreeMap;
use std::sync::Arc;
use toml::Value;

/// What of a load or a level of IOR is wrong.
#[derive(Debug, thiserror::Error)]
enum WrongError {
    #[error("{0} = {1} is no text, number or truth")]
    Form(String, Value),
    #[error("{0}")]
    Option(String),
    #[error("rw has to be \"write\" or \"read\"")]
    Direction,
    #[error("mpi: there are {0}")]
    Mpi(String),
    #[error(transparent)]
    Unit(#[from] base::UnitError),
}

/// Returns the entries of a table as texts: values may be written as what they are.
fn texts(table: &Table<'_>, what: &str) -> Result<BTreeMap<String, String>, WrongError> {
    let given = table.any(what).and_then(|given| given.value.as_table().cloned());
    given
        .unwrap_or_default()
        .into_iter()
        .map(|(key, value)| {
            let text = match value {
                Value::String(text) => text,
                Value::Integer(number) => number.to_string(),
                Value::Boolean(flag) => u8::from(flag).to_string(),
                other => return Err(WrongError::Form(key, other)),
            };
            Ok((key, text))
        })
        .collect()
}

fn options(table: &Table<'_>) -> Result<IorOptions, WrongError> {
    let options = texts(table, "options")?;
    check_options(&options).map_err(WrongError::Option)?;
    Ok(options)
}

fn load_of(table: &Table<'_>) -> Result<IorLoad, WrongError> {
    let writes = match table.text("rw").map(|given| given.value) {
        Some("write") => true,
        Some("read") => false,
        _ => return Err(WrongError::Direction),
    };
    Ok(IorLoad { writes, options: options(table)? })
}

/// Reads a load; `rw` says whether it writes.
pub(super) fn load(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    Ok(Arc::new(load_of(table).map_err(|why| table.wrong("options", why.to_string()))?))
}

fn level_of(table: &Table<'_>, count: Option<i32>) -> Result<IorLevel, WrongError> {
    let mpi = match table.text("mpi").map(|given| given.value) {
        None => None,
        Some(name) => {
            let found = MpiKind::ALL.iter().find(|(known, _)| *known == name);
            let names: Vec<&str> = MpiKind::ALL.iter().map(|(known, _)| *known).collect();
            let (_, kind) = found.ok_or_else(|| WrongError::Mpi(names.join(", ")))?;
            Some(*kind)
        }
    };
    let bytes = table.text("stripe-size").map(|size| units::parse_bytes(size.value)).transpose()?;
    let stripe = Stripe { count, bytes };
    Ok(IorLevel {
        mpi,
        options: options(table)?,
        hints: texts(table, "hints")?,
        stripe: (stripe != Stripe::default()).then_some(stripe),
    })
}

/// Reads a level.
pub(super) fn level(table: &Table<'_>) -> Result<Arc<dyn Setting>, Error> {
    let count = table.int32("stripe-count")?;
    Ok(Arc::new(level_of(table, count).map_err(|why| table.wrong_level(why.to_string()))?))
}
