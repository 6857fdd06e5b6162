//! Finding a name: upper first, then the lower layers from the top, by the kernel's rules
//! (`fs/overlayfs/namei.c`): the first object found decides. Directories are merged until an object
//! of another type, a whiteout or an opaque directory ends the search. A redirect names the name or
//! path under which the search continues.

mod walk;

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use rustix::io::Errno;
use smallvec::SmallVec;

use super::{LowerPart, Node, Place, Tree};
use crate::format::{
    NAMED_OPAQUE, NAMED_WHITEOUT, Opaque, Origin, Prefix, Redirect, StatOverride, suffix,
    whiteout_of,
};
use crate::options::OwnerXattr;
use crate::sys::join;
use crate::sys::{self, Stat};

/// The object under a name.
#[derive(Debug)]
pub(crate) struct Found {
    /// Attributes of the topmost part.
    pub(crate) stat: Stat,
    pub(crate) is_upper: bool,
    /// Whether the upper part has attributes only: its data is that of the last lower part.
    pub(crate) lacks_data: bool,
    /// All lower parts of a directory. Otherwise the topmost one and, where that has attributes
    /// only, the one with the data.
    pub(crate) lower: SmallVec<[LowerPart; 1]>,
    /// Attributes of the topmost lower part, or of the origin, if there is one.
    pub(crate) lower_stat: Option<Stat>,
    /// The name of its entry in the index, if it has one.
    pub(crate) index: Option<Box<[u8]>>,
}

/// The overlay's marks in a directory's or file's attributes.
#[derive(Debug, Default)]
struct Marks {
    is_opaque: bool,
    holds_whiteouts: bool,
    redirect: Option<Redirect>,
    is_metacopy: bool,
    /// Whether it is a copy of a lower inode.
    is_copy: bool,
    /// The original, if it is known.
    origin: Option<Origin>,
    is_whiteout: bool,
    /// Owner and mode, if the layer keeps them here.
    owner: Option<StatOverride>,
}

impl Marks {
    /// Returns the attributes of the found object, in the meaning of its layer.
    fn shown(&self, stat: Stat) -> Result<Stat, Errno> {
        self.owner.map_or(Ok(stat), |owner| owner.apply(stat).ok_or(Errno::INVAL))
    }
}

/// Where to look in the next layer.
#[derive(Debug)]
enum Next {
    /// Under this name in the parent's part there.
    Name(Box<[u8]>),
    /// At this path from the layer's root.
    Path(Box<[u8]>),
}

/// A lookup in the lower layers, with its state.
#[derive(Debug)]
struct Search {
    next: Next,
    /// The upper part, if there is one.
    upper: Option<Stat>,
    /// Whether the data of a file is still missing: the parts found so far have attributes only.
    lacks_data: bool,
    /// Whether the part found last continues the search itself: by a redirect, or for its data.
    is_led: bool,
    lower: SmallVec<[LowerPart; 1]>,
    lower_stat: Option<Stat>,
}

impl Search {
    fn new(next: Next, upper: Option<Stat>) -> Self {
        let lower = SmallVec::new();
        Self { next, upper, lacks_data: false, is_led: false, lower, lower_stat: None }
    }

    /// Continues where a redirect leads.
    fn follow(&mut self, redirect: Option<Redirect>) {
        self.is_led = redirect.is_some() || self.lacks_data;
        match redirect {
            None => {}
            Some(Redirect::Path(path)) => self.next = Next::Path(path),
            Some(Redirect::Name(name)) => match &mut self.next {
                Next::Name(old) => *old = name,
                Next::Path(path) => {
                    let above = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                    *path = join(&path[..above], &name).to_vec().into();
                }
            },
        }
    }
}

/// A name to be looked at in one layer.
struct LookAt {
    directory: sys::Fd,
    name: Box<[u8]>,
    /// From the layer's root.
    path: Rc<[u8]>,
    /// Whether whiteouts there may be attributes.
    in_marked: bool,
    /// Whether the directory is known to hold no whiteouts by name.
    in_plain: bool,
}

impl Tree {
    /// Returns the node of a name; the caller decides whether the kernel gets a reference.
    pub(crate) fn lookup(
        &self,
        parent: &Rc<Node>,
        name: &[u8],
    ) -> Result<Option<(Rc<Node>, Stat)>, Errno> {
        if let Some(node) = parent.child(name) {
            return match self.stat(&node) {
                Ok(stat) => Ok(Some((node, stat))),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno),
            };
        }
        let Some(found) = self.find(parent, name)? else { return Ok(None) };
        let mut stat = found.stat;
        if let Some(file) = self.find_partial(parent, name, &found)? {
            let node = self.adopt(parent, name, found, None);
            stat = self.adopt_partial(&node, file)?;
            return Ok(Some((node, stat)));
        }
        let key = self.is_shared(&found).then_some((stat.device, stat.inode));
        if let Some(node) = self.known_by_another_name(&found) {
            node.add_link(parent, name);
            return self.stat(&node).map(|stat| Some((node, stat)));
        }
        let node = self.adopt(parent, name, found, key);
        if let Some(indexed) = node.indexed.get() {
            stat.nlink = indexed.nlink.get();
        }
        if node.has_data_apart() {
            stat = self.with_blocks_of_data(&node, stat);
        }
        Ok(Some((node, stat)))
    }

    /// Returns whether the object may have been found under another name already. Lower links are
    /// one inode only where a copy-up keeps them together.
    fn is_shared(&self, found: &Found) -> bool {
        let is_kept = found.is_upper || self.index.is_some();
        let has_links = found.stat.nlink > 1 || found.index.is_some();
        is_kept && has_links && !found.stat.is_directory()
    }

    /// Returns the node that an object already has under another name, or under one that is gone. The
    /// count of its links does not show this: others may be removed by now.
    fn known_by_another_name(&self, found: &Found) -> Option<Rc<Node>> {
        if found.stat.is_directory() || !(found.is_upper || self.is_shared(found)) {
            return None;
        }
        let key = (found.stat.device, found.stat.inode);
        let node = self.linked.borrow().get(&key)?.upgrade()?;
        let is_gone = matches!(&*node.place.borrow(), Place::Gone { is_own: true, .. });
        if is_gone && found.is_upper {
            node.set_place(Place::Upper);
        }
        Some(node)
    }

    /// Creates the node of the object found under a name; `key` finds its other names.
    fn adopt(
        &self,
        parent: &Rc<Node>,
        name: &[u8],
        found: Found,
        key: Option<(u64, u64)>,
    ) -> Rc<Node> {
        let place = if found.is_upper { Place::Upper } else { Place::Lower };
        let node = self.make_node(found.stat.kind(), self.inode_of(&found), place);
        node.lower_nlink.set(found.lower_stat.map_or(0, |stat| stat.nlink));
        if let Some(name) = found.index {
            self.adopt_entry(&node, name, &found.stat, found.lower_stat);
        }
        *node.lower.borrow_mut() = found.lower;
        if let Some(state) = node.file() {
            state.lacks_data.set(found.lacks_data);
        }
        let node = Rc::new(node);
        node.add_link(parent, name);
        if let Some(key) = key {
            self.linked.borrow_mut().insert(key, Rc::downgrade(&node));
        }
        node
    }

    /// Returns the inode number to show: that of the topmost lower part, so that a copy-up does not
    /// change it. Hard links that the index does not keep are an exception, because their copies
    /// are different inodes.
    pub(super) fn inode_of(&self, found: &Found) -> u64 {
        let is_broken = |lower: &Stat| found.is_upper && found.index.is_none() && lower.nlink > 1;
        match &found.lower_stat {
            Some(lower) if lower.is_directory() || !is_broken(lower) => self.shown_inode_of(lower),
            _ => self.shown_inode_of(&found.stat),
        }
    }

    /// Looks a name up in all layers.
    pub(crate) fn find(&self, parent: &Rc<Node>, name: &[u8]) -> Result<Option<Found>, Errno> {
        if name.starts_with(NAMED_WHITEOUT) {
            return Ok(None);
        }
        let not_in_upper = || {
            let found = self.find_lower(parent, Search::new(Next::Name(name.into()), None))?;
            found.map(|found| self.through_index(found)).transpose()
        };
        let Some(directory) = self.part(parent, 0)? else { return not_in_upper() };
        let Some(stat) = sys::find_at(directory.as_fd(), name)? else {
            let is_hidden = is_hidden_by_name(directory.as_fd(), name, parent.is_plain(0))?;
            return if is_hidden { Ok(None) } else { not_in_upper() };
        };
        if self.is_whiteout(directory.as_fd(), name, &stat, true)? {
            return Ok(None);
        }
        let marks = self.marks(directory.as_fd(), name, &stat, true, self.layers.owners())?;
        let stat = marks.shown(stat)?;
        let known = |origin: &Origin| Some((origin.value()?, self.layers.original(origin)?));
        let origin = marks.origin.as_ref().and_then(known);
        let index = match &origin {
            Some((origin, _)) if !stat.is_directory() => self.entry_of_upper(origin, &stat)?,
            _ => None,
        };
        let goes_on = match stat.kind() {
            libc::S_IFDIR => {
                let in_plain = parent.is_plain(0);
                !marks.is_opaque && !is_hidden_by_name(directory.as_fd(), name, in_plain)?
            }
            _ if marks.is_metacopy => true,
            _ => match origin {
                Some((_, original)) => {
                    let lower_stat = Some(original);
                    return Ok(Some(Found { lower_stat, index, ..upper_only(stat) }));
                }
                None => marks.is_copy,
            },
        };
        if !goes_on {
            return Ok(Some(upper_only(stat)));
        }
        let mut search = Search::new(Next::Name(name.into()), Some(stat));
        search.lacks_data = marks.is_metacopy;
        search.follow(marks.redirect);
        let found = self.find_lower(parent, search)?;
        Ok(found.map(|found| Found { index, ..found }))
    }

    /// Returns whether a name would show if nothing of it were in the upper directory.
    pub(crate) fn shows_below(&self, parent: &Rc<Node>, name: &[u8]) -> Result<bool, Errno> {
        let search = Search::new(Next::Name(name.into()), None);
        Ok(self.find_lower(parent, search)?.is_some())
    }

    /// Returns the lower part of a lookup.
    fn find_lower(&self, parent: &Rc<Node>, mut search: Search) -> Result<Option<Found>, Errno> {
        let lacks_data = search.lacks_data;
        self.search_lower(parent, &mut search)?;
        if search.lacks_data {
            self.lead_to_data_layers(&mut search)?;
        }
        let Search { upper, mut lower, lower_stat, .. } = search;
        let Some(stat) = upper.or(lower_stat) else { return Ok(None) };
        if !stat.is_directory() && lower.len() > 2 {
            lower.drain(1..lower.len() - 1);
        }
        Ok(Some(Found {
            stat,
            is_upper: upper.is_some(),
            lacks_data,
            lower,
            lower_stat,
            index: None,
        }))
    }

    /// Searches one layer after the other, as long as the part found continues the search.
    fn search_lower(&self, parent: &Rc<Node>, search: &mut Search) -> Result<(), Errno> {
        let seeks_data = search.upper.is_none() || search.lacks_data;
        let parts = parent.lower.borrow().clone();
        let mut index = 0;
        let mut layer = 0;
        loop {
            let has_more = match &search.next {
                Next::Name(_) => index < parts.len(),
                Next::Path(_) => layer < self.layers.merged_count,
            };
            if !has_more {
                return Ok(());
            }
            if search.is_led && !self.options.follows_redirects() {
                return Err(Errno::PERM);
            }
            let mut is_last = false;
            let place = match &search.next {
                Next::Name(name) => {
                    let part = &parts[index];
                    index += 1;
                    layer = usize::from(part.layer);
                    let Some(directory) = self.part(parent, index)? else { return Ok(()) };
                    let path = join(&part.path, name);
                    let in_marked = part.holds_whiteouts;
                    let in_plain = parent.is_plain(index);
                    Some(LookAt { directory, name: name.clone(), path, in_marked, in_plain })
                }
                Next::Path(path) => {
                    let path = path.clone();
                    let walk = self.walk(layer, &path)?;
                    is_last = walk.is_last;
                    search.next = Next::Path(walk.next.unwrap_or(path));
                    walk.place
                }
            };
            let here = layer;
            layer += 1;
            let goes_on = match place {
                Some(place) => self.look_at(&place, here, seeks_data, search)?,
                None => true,
            };
            if is_last || !goes_on {
                return Ok(());
            }
        }
    }

    /// Looks at a name in one layer. Returns whether the search continues in the next one.
    fn look_at(
        &self,
        place: &LookAt,
        layer: usize,
        seeks_data: bool,
        search: &mut Search,
    ) -> Result<bool, Errno> {
        let (directory, name) = (place.directory.as_fd(), &*place.name);
        let Some(stat) = sys::find_at(directory, name)? else {
            return Ok(!is_hidden_by_name(directory, name, place.in_plain)?);
        };
        let top = search.upper.or(search.lower_stat);
        let is_other_kind = top.is_some_and(|top| top.kind() != stat.kind());
        if is_other_kind || self.is_whiteout(directory, name, &stat, place.in_marked)? {
            return Ok(false);
        }
        let marks = if stat.is_directory() || stat.is_regular() {
            self.marks(directory, name, &stat, false, self.layers.lower[layer].owners)?
        } else {
            Marks::default()
        };
        let stat = marks.shown(stat)?;
        search.lower.push(LowerPart {
            layer: layer as u16,
            path: Rc::clone(&place.path),
            holds_whiteouts: marks.holds_whiteouts,
        });
        search.lower_stat.get_or_insert(stat);
        search.lacks_data = seeks_data && marks.is_metacopy;
        let goes_on = if stat.is_directory() {
            !marks.is_opaque && !is_hidden_by_name(directory, name, place.in_plain)?
        } else {
            search.lacks_data
        };
        if goes_on {
            search.follow(marks.redirect);
        }
        Ok(goes_on)
    }

    /// Points the search to the layers that hold data only, where no merged layer has the data. Its
    /// path must start at the root of the layers and come from a lower layer. The data is looked
    /// for when it is needed.
    fn lead_to_data_layers(&self, search: &mut Search) -> Result<(), Errno> {
        let layer = self.layers.merged_count;
        match &search.next {
            Next::Path(path) if !search.lower.is_empty() && layer < self.layers.lower.len() => {
                let path = Rc::from(&**path);
                search.lower.push(LowerPart { layer: layer as u16, path, holds_whiteouts: false });
                Ok(())
            }
            _ => Err(Errno::IO),
        }
    }

    /// Returns whether a name is a whiteout, which ends the search.
    pub(crate) fn is_whiteout(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
        in_marked: bool,
    ) -> Result<bool, Errno> {
        if stat.is_whiteout_device() {
            return Ok(true);
        }
        // The other form exists only in directories with a mark for it.
        if !in_marked || !stat.is_regular() || stat.size != 0 {
            return Ok(false);
        }
        Ok(self.marks(directory, name, stat, false, None)?.is_whiteout)
    }

    /// Reads the overlay's own attributes of the found object.
    fn marks(
        &self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
        in_upper: bool,
        owners: Option<OwnerXattr>,
    ) -> Result<Marks, Errno> {
        let mut marks = Marks::default();
        if !stat.is_directory() && !stat.is_regular() && !in_upper {
            return Ok(marks);
        }
        if stat.is_directory() {
            marks.is_opaque = sys::find_at(directory, &join(name, NAMED_OPAQUE))?.is_some();
        }
        for attribute in sys::xattr_names_at(directory, name)? {
            let value =
                || sys::xattr_at(directory, name, &attribute).map(Option::unwrap_or_default);
            if Prefix::is_foreign_opaque(&attribute) {
                marks.is_opaque |= value()? == b"y";
            }
            if owners.is_some_and(|form| attribute == form.attribute())
                && (stat.is_directory() || stat.is_regular())
            {
                marks.owner = Some(StatOverride::parse(&value()?).ok_or(Errno::INVAL)?);
            }
            let Some(own) = self.layers.prefix.own(&attribute) else { continue };
            match own {
                suffix::OPAQUE => match Opaque::parse(&value()?) {
                    Opaque::Yes => marks.is_opaque = true,
                    Opaque::HoldsWhiteouts => marks.holds_whiteouts = true,
                    Opaque::No => {}
                },
                suffix::REDIRECT => {
                    let redirect = Redirect::parse(&value()?).ok_or(Errno::INVAL)?;
                    marks.redirect = Some(redirect);
                }
                suffix::METACOPY => marks.is_metacopy = stat.is_regular(),
                suffix::ORIGIN => {
                    marks.is_copy = true;
                    marks.origin = Origin::parse(&value()?);
                }
                suffix::WHITEOUT => marks.is_whiteout = true,
                _ => {}
            }
        }
        Ok(marks)
    }
}

/// Returns whether a file beside a name hides what lower layers have under it.
fn is_hidden_by_name(
    directory: BorrowedFd<'_>,
    name: &[u8],
    in_plain: bool,
) -> Result<bool, Errno> {
    if in_plain {
        return Ok(false);
    }
    match sys::find_at(directory, &whiteout_of(name)) {
        // A name too long for its whiteout has none.
        Err(Errno::NAMETOOLONG) => Ok(false),
        other => other.map(|found| found.is_some()),
    }
}

fn upper_only(stat: Stat) -> Found {
    let lower = SmallVec::new();
    Found { stat, is_upper: true, lacks_data: false, lower, lower_stat: None, index: None }
}
