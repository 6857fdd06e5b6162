//! IOR's command line: its letters, of both versions.

use super::script::{Settings, size};
use std::path::PathBuf;

/// A command line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// What it sets before the script, or for the only test.
    pub settings: Settings,
    /// The script.
    pub script: Option<PathBuf>,
    /// What it sets after naming the script: 2.10.3 ignores that.
    pub after: Vec<(String, String)>,
}

/// Letters that set a keyword to 1, or add 1 to it.
const FLAGS: [(char, &str); 31] = [
    ('B', "useO_DIRECT"),
    ('c', "collective"),
    ('C', "reorderTasksConstant"),
    ('Z', "reorderTasksRandom"),
    ('Y', "fsyncPerWrite"),
    ('e', "fsync"),
    ('E', "useExistingTestFile"),
    ('F', "filePerProc"),
    ('g', "intraTestBarriers"),
    ('h', "showHelp"),
    ('H', "showHints"),
    ('I', "individualDataSets"),
    ('k', "keepFile"),
    ('K', "keepFileWithError"),
    ('l', "storeFileOffset"),
    ('m', "multiFile"),
    ('n', "noFill"),
    ('p', "preallocate"),
    ('P', "useSharedFilePointer"),
    ('q', "quitOnError"),
    ('r', "readFile"),
    ('R', "checkRead"),
    ('S', "useStridedDatatype"),
    ('u', "uniqueDir"),
    ('v', "verbose"),
    ('V', "useFileView"),
    ('w', "writeFile"),
    ('W', "checkWrite"),
    ('x', "singleXferAttempt"),
    ('y', "dualMount"),
    ('z', "randomOffset"),
];

/// Letters with a value.
const VALUES: [(char, &str); 18] = [
    ('A', "testNum"),
    ('a', "api"),
    ('b', "blockSize"),
    ('Q', "taskPerNodeOffset"),
    ('X', "reorderTasksRandomSeed"),
    ('d', "interTestDelay"),
    ('D', "deadlineForStonewalling"),
    ('G', "setTimeStampSignature"),
    ('i', "repetitions"),
    ('j', "outlierThreshold"),
    ('J', "setAlignment"),
    ('M', "memoryPerNode"),
    ('N', "numTasks"),
    ('o', "testFile"),
    ('s', "segmentCount"),
    ('t', "transferSize"),
    ('T', "maxTimeDuration"),
    ('U', "hintsFileName"),
];

/// Letters that may be given twice.
const COUNTED: [&str; 3] = ["verbose", "randomOffset", "reorderTasksRandom"];

/// Values of version 4's `-l`; without one of them it is 2.10.3's flag.
const PACKETS: [&str; 8] = ["o", "i", "t", "r", "offset", "incompressible", "timestamp", "random"];

/// Reads IOR's options.
pub fn read_options(words: &[String]) -> Result<Line, String> {
    let mut line = Line::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        if let Some(option) = word.strip_prefix("--") {
            long(&mut line, option)?;
            continue;
        }
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            return Err(format!("{word:?} is no option"));
        };
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            let valued = VALUES.iter().find(|(it, _)| *it == letter).map(|(_, keyword)| *keyword);
            let is_packet = letter == 'l' && words.peek().is_some_and(|it| is_packet(it));
            if valued.is_none() && !is_packet && !matches!(letter, 'f' | 'O') {
                flag(&mut line, letter)?;
                continue;
            }
            // The rest of the word, or the next one.
            let value = match std::mem::take(&mut rest) {
                "" => words.next().map(String::as_str),
                tail => Some(tail),
            };
            let value = value.ok_or_else(|| format!("-{letter} needs a value"))?;
            match (letter, valued) {
                ('f', _) => line.script = Some(value.into()),
                ('O', _) => directives(&mut line, value)?,
                (_, Some(keyword)) => set(&mut line, keyword, value)?,
                (_, None) => set(&mut line, "dataPacketType", value)?,
            }
        }
    }
    Ok(line)
}

fn is_packet(word: &str) -> bool {
    PACKETS.contains(&word)
}

fn directives(line: &mut Line, text: &str) -> Result<(), String> {
    for directive in text.split(',') {
        let (key, value) =
            directive.split_once('=').ok_or_else(|| format!("-O {directive:?} is no KEY=VALUE"))?;
        set(line, key.trim(), value.trim())?;
    }
    Ok(())
}

fn flag(line: &mut Line, letter: char) -> Result<(), String> {
    let Some((_, keyword)) = FLAGS.iter().find(|(it, _)| *it == letter) else {
        return Err(format!("-{letter} is no option of IOR 2.10.3 or 4"));
    };
    let mut count = 1;
    if COUNTED.contains(keyword) {
        count += line.settings.number(keyword).unwrap_or(0);
    }
    set(line, keyword, &count.to_string())
}

fn long(line: &mut Line, option: &str) -> Result<(), String> {
    let (name, value) = option.split_once('=').unwrap_or((option, "1"));
    if matches!(name, "warningAsErrors" | "GPUDirect" | "dataPacketType") {
        return set(line, name, value);
    }
    set(line, &format!("--{name}"), value)
}

fn set(line: &mut Line, keyword: &str, value: &str) -> Result<(), String> {
    if line.script.is_some() {
        line.after.push((keyword.into(), value.into()));
        // It is checked, whether it counts or not.
        return Settings::default().set(keyword, value);
    }
    if keyword == "memoryPerNode" && !value.ends_with('%') {
        size(value)?;
    }
    line.settings.set(keyword, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_string).collect()
    }

    /// Goal: letters of both versions, joined or apart, counted, with `-l` of either, and what comes
    /// after the script apart from what comes before.
    #[test]
    fn letters_are_read() {
        let line = "-a MPIIO -wr -b4m -t 1m -vv -C -l -O checkRead=1,segmentCount=2 --mpiio.showHints \
             --posix.odirect -f script -F -l t";
        let line = read_options(&words(line)).unwrap();
        assert_eq!(line.settings.text("api"), Some("MPIIO"));
        assert_eq!(line.settings.number("blockSize"), Some(4 << 20));
        assert_eq!(line.settings.number("verbose"), Some(2));
        for keyword in ["writeFile", "readFile", "checkRead", "storeFileOffset"] {
            assert!(line.settings.is_set(keyword), "{keyword}");
        }
        assert!(line.settings.is_option_set("--mpiio.showHints"));
        assert_eq!(line.script, Some("script".into()));
        assert_eq!(line.after.len(), 2);
        assert_eq!(line.after[1], ("dataPacketType".to_string(), "t".to_string()));
        for wrong in ["-b", "-?", "file", "-b x", "-O x", "--x.y=1", "-"] {
            assert!(read_options(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
