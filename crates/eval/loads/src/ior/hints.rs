//! Hints for MPI-IO, from the environment and from the script's hints file.
//!
//! IOR takes `IOR_HINT__MPI__name=value` from both, and ignores any other line of the file without a
//! word, also those in ROMIO's own form, `name value`. Here both forms are taken, and what cannot be
//! read is noted. Whether a hint had an effect is another question: see [`Effective::differences`].

const PREFIX: &str = "IOR_HINT__MPI__";
const OTHER_PREFIX: &str = "IOR_HINT__";
/// As the shim has it.
const HINTS_MAX: usize = 64;

/// Name and value.
pub type Hint = (String, String);

fn put(hints: &mut Vec<Hint>, key: &str, value: &str) {
    hints.retain(|(other, _)| other != key);
    hints.push((key.into(), value.into()));
}

/// Hints of the environment.
pub(super) fn of_environment(variables: impl Iterator<Item = (String, String)>) -> Vec<Hint> {
    let mut hints = Vec::new();
    for (name, value) in variables {
        if let Some(key) = name.strip_prefix(PREFIX) {
            put(&mut hints, key, value.trim());
        }
    }
    hints.sort();
    hints
}

/// Adds the hints of a file; what is read differently from IOR is noted.
pub(super) fn add_file(
    hints: &mut Vec<Hint>,
    text: &str,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let is_blank = |c: char| c == '=' || c.is_whitespace();
        let (name, value) = line.split_once(is_blank).unwrap_or((line, ""));
        let value = value.trim_start_matches(is_blank).trim();
        let key = match name.strip_prefix(PREFIX) {
            Some(key) => key,
            None if name.starts_with(OTHER_PREFIX) => {
                notes.push(format!("hints, line {number}: {name} is not for MPI-IO, and left out"));
                continue;
            }
            None => {
                notes.push(format!(
                    "hints, line {number}: {name} is taken; IOR ignores lines without {PREFIX}"
                ));
                name
            }
        };
        if key.is_empty() || value.is_empty() {
            return Err(format!("hints, line {number}: {line:?} is no NAME=VALUE"));
        }
        put(hints, key, value);
    }
    if hints.len() > HINTS_MAX {
        return Err(format!("{} hints are too many: at most {HINTS_MAX}", hints.len()));
    }
    Ok(())
}

/// The hints that an open file reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effective {
    /// Whose MPI-IO it is; empty if there is none.
    pub implementation: String,
    /// Its hints.
    pub hints: Vec<Hint>,
    /// They are only what it was given: nothing shows whether they were taken.
    pub is_echo: bool,
}

impl Effective {
    /// From the hints that the MPI returned, and those that ROMIO printed. Open MPI returns whatever it was
    /// given, unknown names too; its ROMIO prints, its OMPIO does not.
    pub(super) fn of(library: &str, given_back: Vec<Hint>, printed: Vec<Hint>) -> Self {
        if !printed.is_empty() {
            let implementation = "ROMIO".into();
            return Self { implementation, hints: printed, is_echo: false };
        }
        let is_open_mpi = library.contains("Open MPI");
        let implementation = if is_open_mpi { "OMPIO" } else { "not ROMIO" }.into();
        Self { implementation, hints: given_back, is_echo: is_open_mpi }
    }

    /// What was set and is not what the open file has: a reason not to believe the measurement.
    pub fn differences(&self, set: &[Hint]) -> Vec<String> {
        let of = |key: &str| self.hints.iter().find(|(it, _)| it == key).map(|(_, value)| value);
        let name = &self.implementation;
        set.iter()
            .filter_map(|(key, value)| match of(key) {
                _ if self.is_echo && key.starts_with("romio_") => {
                    Some(format!("{key}={value} is for ROMIO, and this is {name}"))
                }
                _ if self.is_echo => Some(format!(
                    "{key}={value} cannot be read back: {name} repeats what it is given"
                )),
                None => Some(format!("{key}={value} is ignored by {name}")),
                Some(other) if !is_same(value, other) => {
                    Some(format!("{key}={value} is {other} in the open file ({name})"))
                }
                Some(_) => None,
            })
            .collect()
    }
}

/// Implementations write values their own way: `Enable` and `enable`, `true` and `enable`.
fn is_same(a: &str, b: &str) -> bool {
    let plain = |value: &str| match value.to_ascii_lowercase().as_str() {
        "true" => "enable".to_string(),
        "false" => "disable".to_string(),
        other => other.to_string(),
    };
    plain(a) == plain(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(hints: &[(&str, &str)]) -> Vec<Hint> {
        hints.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect()
    }

    /// Goal: IOR's form and ROMIO's are read, the file wins over the environment, other lines are
    /// noted or refused. The second file is that of the TSUBAME3.0 study's figure 4.
    #[test]
    fn both_forms_are_read() {
        let variables =
            [("IOR_HINT__MPI__cb_nodes", "1"), ("IOR_HINT__GPFS__x", "1"), ("PATH", "")];
        let mut hints = of_environment(pairs(&variables).into_iter());
        let mut notes = Vec::new();
        let text = "# comment\nIOR_HINT__MPI__cb_nodes=2\n\nIOR_HINT__GPFS__y=1\n";
        add_file(&mut hints, text, &mut notes).unwrap();
        assert_eq!((hints, notes.len()), (pairs(&[("cb_nodes", "2")]), 1));
        let text = "romio_lustre_co_ratio=16\ncb_config_list=*:4\nromio_cb_read=enable\n\
                    romio_cb_write enable\n";
        let (mut hints, mut notes) = (Vec::new(), Vec::new());
        add_file(&mut hints, text, &mut notes).unwrap();
        let expected = [
            ("romio_lustre_co_ratio", "16"),
            ("cb_config_list", "*:4"),
            ("romio_cb_read", "enable"),
            ("romio_cb_write", "enable"),
        ];
        assert_eq!((hints.clone(), notes.len()), (pairs(&expected), 4));
        assert!(add_file(&mut hints, "alone\n", &mut notes).is_err());
    }

    /// Goal: a hint that was ignored or changed is told, one that was taken is not.
    #[test]
    fn hints_that_are_not_read_back_are_told() {
        let set = pairs(&[("romio_cb_read", "Enable"), ("cb_nodes", "4"), ("striping_unit", "1")]);
        let back = pairs(&[("romio_cb_read", "enable"), ("cb_nodes", "2")]);
        let effective = Effective::of("MPICH Version: 4.0.2", Vec::new(), back);
        let told = effective.differences(&set);
        assert_eq!((told.len(), effective.implementation.as_str()), (2, "ROMIO"));
        assert!(told[0].contains("cb_nodes=4 is 2") && told[1].contains("ignored"));
    }

    /// Goal: what Open MPI merely repeats proves nothing; what its ROMIO prints does. Seen with Open
    /// MPI 4.1.4, which gives back any name with both components.
    #[test]
    fn echoes_prove_nothing() {
        let set = pairs(&[("romio_cb_write", "enable"), ("cb_nodes", "1"), ("foo_bar", "7")]);
        let echo = Effective::of("Open MPI v4.1.4", set.clone(), Vec::new());
        assert_eq!((echo.differences(&set).len(), echo.implementation.as_str()), (3, "OMPIO"));
        let printed = pairs(&[("romio_cb_write", "enable"), ("cb_nodes", "1")]);
        let romio = Effective::of("Open MPI v4.1.4", set.clone(), printed);
        let told = romio.differences(&set);
        assert!(told.len() == 1 && told[0].contains("foo_bar=7 is ignored"), "{told:?}");
    }
}
