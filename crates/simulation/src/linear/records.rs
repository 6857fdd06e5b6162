//! Histories recorded by other programs, as lines of JSON.

use super::{Call, Verdict, check};

/// The result of checking a recorded history.
#[derive(Debug)]
pub struct Recorded {
    /// Number of calls.
    pub calls: usize,
    /// The result of the check.
    pub verdict: Verdict,
}

/// Checks a history with one [`Call`] in each line, in any order.
///
/// # Errors
/// Returns the first line that is not a call.
pub fn check_lines(text: &str) -> Result<Recorded, String> {
    let mut calls: Vec<Call> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let call: Call = serde_json::from_str(line)
            .map_err(|error| format!("line {}: {error}: {line}", number + 1))?;
        if call.end.is_some_and(|end| end < call.begin) {
            return Err(format!("line {} ends before it begins: {line}", number + 1));
        }
        calls.push(call);
    }
    Ok(Recorded { calls: calls.len(), verdict: check(&calls, &[]) })
}
