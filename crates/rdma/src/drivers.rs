//! The drivers of a process that will confine itself.
//!
//! libibverbs loads the driver of a device when it lists devices. A confined process cannot open the
//! drivers' files, so it loads them first. But it opens devices only afterwards: the kernel takes no
//! commands on a descriptor of a device or of the connection manager from a process whose
//! credentials have changed since it was opened, and confinement by Landlock changes them.

use crate::Error;
use crate::library::Library;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The libraries with the drivers of this machine's devices. They stay loaded as long as this lives.
pub struct Drivers {
    library: Arc<Library>,
}

impl Drivers {
    /// The directory of the devices that a process opens after its confinement.
    pub const DEVICES: &str = "/dev/infiniband";

    /// Loads the libraries and the drivers of the devices that the machine has now. Opens no device.
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::NoDevice`].
    pub fn load() -> Result<Self, Error> {
        Self::of(Library::load()?)
    }

    fn of(library: Arc<Library>) -> Result<Self, Error> {
        let mut count = 0;
        // SAFETY: the count is ours.
        let list = unsafe { (library.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(Error::NoDevice);
        }
        // SAFETY: the library's list is not used afterwards.
        unsafe { (library.free_device_list)(list) };
        if count < 1 { Err(Error::NoDevice) } else { Ok(Self { library }) }
    }

    /// Returns the loaded libraries.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Returns the directories that a process reads after its confinement. The kernel describes
    /// devices there. A device that leaves and comes back has new files, so each whole tree is
    /// needed.
    pub fn readable() -> [&'static Path; 4] {
        let paths = [
            "/sys/devices",
            "/sys/class/infiniband",
            "/sys/class/infiniband_verbs",
            "/sys/class/misc",
        ];
        paths.map(Path::new)
    }
}

impl fmt::Debug for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drivers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, lists_held, present};

    /// Goal: loading the drivers lists the devices and opens none. On a machine without a device the
    /// error says how to get one.
    #[test]
    fn loading_opens_no_device() {
        let fake = Fake::new();
        present(1);
        // Every function but those of the list would end the test.
        let drivers = Drivers::of(Arc::clone(&fake.library)).unwrap();
        assert!(Arc::ptr_eq(drivers.library(), &fake.library));
        assert_eq!(lists_held(), 0);
        present(0);
        let none = Drivers::of(fake.library).unwrap_err().to_string();
        assert!(none.contains("not available") && none.contains("rdma link add"), "{none}");
    }
}
