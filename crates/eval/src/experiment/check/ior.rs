//! Loads and levels of IOR.

use crate::engine::ior::MpiKind;
use crate::experiment::ior::{IorLevel, IorLoad, IorOptions, Stripe, check_options};
use crate::experiment::raw::{RawLevel, RawWorkload};
use crate::units;
use std::collections::BTreeMap;
use toml::Value;

/// Values may be written as what they are.
fn texts(raw: &BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, String> {
    raw.iter()
        .map(|(key, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Boolean(flag) => u8::from(*flag).to_string(),
                other => return Err(format!("{key} = {other} is no text, number or truth")),
            };
            Ok((key.clone(), text))
        })
        .collect()
}

fn options(raw: &BTreeMap<String, Value>) -> Result<IorOptions, String> {
    let options = texts(raw)?;
    check_options(&options)?;
    Ok(options)
}

/// A load; `rw` says whether it writes.
pub(super) fn load(raw: &RawWorkload) -> Result<IorLoad, String> {
    let writes = match raw.rw.as_ref().map(|rw| rw.get_ref().as_str()) {
        Some("write") => true,
        Some("read") => false,
        _ => return Err("rw has to be \"write\" or \"read\"".into()),
    };
    Ok(IorLoad { writes, options: options(&raw.options)? })
}

/// A level.
pub(super) fn level(raw: &RawLevel) -> Result<IorLevel, String> {
    let mpi = match &raw.mpi {
        None => None,
        Some(name) => {
            let found = MpiKind::ALL.iter().find(|(known, _)| known == name);
            let names: Vec<&str> = MpiKind::ALL.iter().map(|(known, _)| *known).collect();
            let (_, kind) = found.ok_or_else(|| format!("mpi: there are {}", names.join(", ")))?;
            Some(*kind)
        }
    };
    let bytes = raw.stripe_size.as_ref().map(|size| units::parse_bytes(size)).transpose()?;
    let stripe = Stripe { count: raw.stripe_count, bytes };
    Ok(IorLevel {
        mpi,
        options: options(&raw.options)?,
        hints: texts(&raw.hints)?,
        stripe: (stripe != Stripe::default()).then_some(stripe),
    })
}
