//! Walking to the path of an absolute redirect in one layer.

use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{LookAt, is_hidden_by_name};
use crate::format::Redirect;
use crate::sys::{self, join};
use crate::tree::Tree;

/// A walk to a path in one layer.
pub(super) struct Walk {
    /// Where the path leads; `None` if something above it is not there.
    pub(super) place: Option<LookAt>,
    /// Whether lower layers have no part in it.
    pub(super) is_last: bool,
    /// The path in lower layers, where a directory on the way names another.
    pub(super) next: Option<Box<[u8]>>,
}

impl Tree {
    /// Walks to a path in a layer, by the rules of every lookup: a whiteout, an opaque directory or
    /// a redirect on the way hides or moves what lower layers have (`ovl_lookup_layer`).
    pub(super) fn walk(&self, layer: usize, path: &[u8]) -> Result<Walk, Errno> {
        let root = sys::open_below(
            self.layers.lower[layer].root.as_fd(),
            b"",
            OFlags::PATH | OFlags::DIRECTORY,
        )?;
        let mut walk = Walk { place: None, is_last: false, next: None };
        let mut place = LookAt {
            directory: Rc::new(root),
            name: Box::default(),
            path: path.into(),
            in_marked: false,
            in_plain: false,
        };
        let mut rest = path;
        while let Some(cut) = rest.iter().position(|&byte| byte == b'/') {
            let name = &rest[..cut];
            rest = &rest[cut + 1..];
            let directory = place.directory.as_fd();
            let is_hidden = is_hidden_by_name(directory, name, place.in_plain)?;
            walk.is_last |= is_hidden;
            let Some(stat) = sys::find_at(directory, name)? else { return Ok(walk) };
            if !stat.is_directory() {
                // A whiteout, or something that lower directories are not merged with.
                return Ok(Walk { is_last: true, ..walk });
            }
            let marks =
                self.marks(directory, name, &stat, false, self.layers.lower[layer].owners)?;
            walk.is_last |= marks.is_opaque;
            if let Some(redirect) = marks.redirect {
                walk.next = Some(redirected(path, rest, walk.next.as_deref(), redirect));
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let inner = match sys::open_below(directory, name, flags) {
                Ok(inner) => inner,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(walk),
                Err(errno) => return Err(errno),
            };
            place.directory = Rc::new(inner);
            place.in_marked = marks.holds_whiteouts;
        }
        place.name = rest.into();
        walk.place = Some(place);
        Ok(walk)
    }
}

/// Returns the path in lower layers below a directory with a redirect; `rest` is what follows it in
/// `path`, and `known` the path that directories above it have named.
fn redirected(path: &[u8], rest: &[u8], known: Option<&[u8]>, redirect: Redirect) -> Box<[u8]> {
    let target = match redirect {
        Redirect::Path(target) => target,
        Redirect::Name(name) => {
            // The directory's own path in lower layers, without its name.
            let whole = known.unwrap_or(path);
            let own = &whole[..whole.len() - rest.len() - 1];
            let above = own.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            join(&own[..above], &name).to_vec().into()
        }
    };
    join(&target, rest).to_vec().into()
}
