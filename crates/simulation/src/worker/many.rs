//! A step that makes several files with one call.

use super::{Doing, Worker};
use crate::linear::{Answer, Op};
use crate::names::{NameEffect, Slot};
use protocol::files::NewFile;
use protocol::inline::Bytes;
use protocol::{Errno, Timestamp};

/// Names that one call makes.
const NAMES_MAX: usize = 3;

impl Worker {
    /// Makes empty files of several names in one directory, all or none.
    pub(super) async fn make_files(&mut self) {
        let (parent, _) = self.place();
        let count = self.random.between(2, NAMES_MAX as u64) as usize;
        let first = self.random.below(super::NAMES.len() as u64) as usize;
        let names = super::NAMES.into_iter().cycle().skip(first).take(count);
        let names: Vec<String> = names.map(str::to_owned).collect();
        let Some(client) = self.kernel.client() else { return };
        let life = self.begin("make files");
        for name in &names {
            self.on_name(parent, name);
        }
        self.does(Doing::Changes);
        let slot = |name: &String| Slot { parent, name: name.clone() };
        let made: Vec<_> = names.iter().map(|name| (slot(name), NameEffect::SetSome)).collect();
        let open = self.open_changes(&life, made.clone());
        let calls: Vec<usize> = names
            .iter()
            .map(|name| {
                let op = Op::Create { path: self.shared.path(parent, name), exclusive: true };
                self.call(&life, op)
            })
            .collect();
        let files = names.iter().map(|name| new_file(name)).collect();
        let job = self.kernel.in_process(async move { client.create_files(parent, files).await });
        let result = job.await;
        let is_refused = matches!(result, Err(Errno::EOPNOTSUPP));
        self.answered("make files", if is_refused { &Ok(()) } else { &result });
        for index in 0..names.len() {
            self.forget_change(open + index);
        }
        if is_refused || matches!(result, Err(Errno::EEXIST)) {
            // One of the names existed. The error does not name it, and no file was made.
            for call in calls {
                self.history().calls[call].life.is_void = true;
            }
            return;
        }
        for call in calls {
            self.call_ended(call, &result, |()| Answer::Done);
        }
        self.event(&life, &result, made, Vec::new());
    }
}

fn new_file(name: &str) -> NewFile {
    NewFile {
        name: name.as_bytes().to_vec(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        bytes: Bytes(Vec::new()),
        sum: None,
    }
}
