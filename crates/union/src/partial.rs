//! Making partial copies instead of whole ones, and making them whole: at once for a request that
//! needs it ([`complete`]), or in the background ([`fill`]).
//!
//! Operations that a partial file does not support (links, renames, changes of attributes, owner or
//! mode) complete it first: then it is an ordinary file of the upper directory.

mod complete;
mod fill;
mod start;

pub(crate) use fill::{Filler, Worker};

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::durability::Durability;
use crate::tree::Tree;

/// Makes partial files of a union, and completes them.
#[derive(Debug)]
pub(crate) struct PartialFiles {
    tree: Rc<Tree>,
    durability: Rc<Durability>,
    /// Whether files of a device can be cloned into the upper, as far as it was tried.
    clones: RefCell<HashMap<u64, bool>>,
    /// The state of filling them in the background.
    filler: Filler,
    /// The thread that copies for it.
    worker: Rc<Worker>,
}

impl PartialFiles {
    pub(crate) fn new(tree: &Rc<Tree>, durability: &Rc<Durability>, worker: &Rc<Worker>) -> Self {
        Self {
            tree: Rc::clone(tree),
            durability: Rc::clone(durability),
            clones: RefCell::default(),
            filler: Filler::default(),
            worker: Rc::clone(worker),
        }
    }

    pub(crate) fn tree(&self) -> &Rc<Tree> {
        &self.tree
    }

    pub(crate) fn durability(&self) -> &Rc<Durability> {
        &self.durability
    }

    /// Returns the state of filling them in the background.
    pub(crate) fn filler(&self) -> &Filler {
        &self.filler
    }
}
