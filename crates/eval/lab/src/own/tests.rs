use super::*;
use loads::process;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

fn make(parent: &Path) -> OwnDirectory {
    OwnDirectory::make(parent, &Owner::new().unwrap()).unwrap()
}

/// Gives up a directory as a process does that is killed: the lock goes, the rest stays.
fn die(directory: OwnDirectory) -> PathBuf {
    let path = directory.path.clone();
    let mut directory = directory;
    directory.is_kept = true;
    path
}

/// Reclaims until something is found: a process that another test is just starting has a copy of the
/// lock until it becomes its program.
fn reclaim_soon(parent: &Path) -> Vec<(PathBuf, Result<(), Error>)> {
    let tries = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(10));
        reclaim_below(parent)
    });
    tries.take(1000).find(|found| !found.is_empty()).unwrap_or_default()
}

/// A process that ends with this.
struct Sleeping(Child);

impl Drop for Sleeping {
    fn drop(&mut self) {
        process::end(&mut self.0, Duration::from_secs(5)).unwrap();
    }
}

fn sleeping(owner: &Owner, is_service: bool) -> Sleeping {
    let mut command = Command::new("sleep");
    command.arg("1000").stdin(Stdio::null()).process_group(0);
    if is_service {
        owner.mark_service(&mut command)
    } else {
        owner.mark(&mut command)
    };
    Sleeping(command.spawn().unwrap())
}

/// Goal: own directories are new, hold nothing of others, and go with their contents.
#[test]
fn own_directories_come_and_go() {
    let parent = tempfile::tempdir().unwrap();
    let (first, second) = (make(parent.path()), make(parent.path()));
    assert_ne!(first.path(), second.path());
    fs::create_dir(first.path().join("sub")).unwrap();
    fs::write(first.path().join("sub/file"), b"x").unwrap();
    let beside = parent.path().join("beside");
    fs::write(&beside, b"not ours").unwrap();
    first.remove().unwrap();
    drop(second);
    let left: Vec<_> = fs::read_dir(parent.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1);
    assert!(beside.exists());
    let missing = OwnDirectory::make(&parent.path().join("missing"), &Owner::new().unwrap());
    assert!(missing.is_err());
}

/// Goal: what a dead experiment left goes: its directory, its further ones, its processes (and no
/// other's), what its leave commands undo; a living one's stays.
#[test]
fn the_dead_are_cleaned_up_after() {
    let (parent, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let owner = Owner::new().unwrap();
    let dead = OwnDirectory::make(parent.path(), &owner).unwrap();
    let further = OwnDirectory::make(elsewhere.path(), &owner).unwrap();
    dead.note_further(&further).unwrap();
    let left = parent.path().join("was-left");
    dead.note_leave(&format!("touch '{}'", left.display())).unwrap();
    fs::create_dir(dead.path().join("sub")).unwrap();
    let living = make(parent.path());
    let mut ours = [sleeping(&owner, false), sleeping(&owner, true)];
    let mut others = sleeping(&Owner::new().unwrap(), false);
    let (dead, further) = (die(dead), die(further));
    let reclaimed = reclaim_soon(parent.path());
    assert!(matches!(reclaimed.as_slice(), [(path, Ok(()))] if *path == dead), "{reclaimed:?}");
    assert!(!dead.exists() && !further.exists() && living.path().exists() && left.exists());
    assert!(ours.iter_mut().all(|child| child.0.wait().unwrap().code().is_none()));
    assert!(others.0.try_wait().unwrap().is_none(), "another's process was ended");
}

/// Goal: whatever is not proven to be ours stays: no marker, another's name, a marker that others
/// may write or that is a link.
#[test]
fn what_is_not_ours_stays() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    for name in ["tsumugi-eval-1-0", "tsumugi-eval-1-1", "tsumugi-eval-1-2", "elsewhere"] {
        fs::create_dir(at(name)).unwrap();
    }
    let line = serde_json::to_string(&Line::Made { owner: Owner::new().unwrap(), boot: boot() });
    let line = line.unwrap() + "\n";
    fs::write(at("elsewhere").join(MARKER), &line).unwrap();
    let open = at("tsumugi-eval-1-1").join(MARKER);
    fs::write(&open, &line).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    let link = at("tsumugi-eval-1-2").join(MARKER);
    std::os::unix::fs::symlink(at("elsewhere").join(MARKER), link).unwrap();
    assert!(reclaim_below(parent.path()).is_empty());
    // A marker that says nothing is named, and nothing is removed.
    fs::create_dir(at("tsumugi-eval-1-3")).unwrap();
    fs::write(at("tsumugi-eval-1-3").join(MARKER), "?").unwrap();
    let reclaimed = reclaim_below(parent.path());
    assert!(matches!(reclaimed.as_slice(), [(_, Err(Error::Refused(_)))]), "{reclaimed:?}");
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 5);
}

/// Goal: after another boot nothing but the directory is touched: numbers and commands of then mean
/// something else now.
#[test]
fn a_boot_ends_all_but_files() {
    let parent = tempfile::tempdir().unwrap();
    let owner = Owner::new().unwrap();
    let dead = OwnDirectory::make(parent.path(), &owner).unwrap();
    let left = parent.path().join("was-left");
    dead.note_leave(&format!("touch '{}'", left.display())).unwrap();
    let dead = die(dead);
    let marker = dead.join(MARKER);
    let text = fs::read_to_string(&marker).unwrap().replace(&boot(), "another");
    fs::write(&marker, text).unwrap();
    let mut child = sleeping(&owner, false);
    assert!(reclaim_soon(parent.path()).iter().all(|(_, done)| done.is_ok()));
    assert!(!dead.exists() && !left.exists());
    assert!(child.0.try_wait().unwrap().is_none());
}

/// Goal: the reaper waits for as long as the maker lives, does nothing after an orderly end, and
/// reclaims after a death.
#[test]
fn the_reaper_waits() {
    let parent = tempfile::tempdir().unwrap();
    for dies in [false, true] {
        let directory = make(parent.path());
        let path = directory.path().to_path_buf();
        let waiting = path.clone();
        let reaper = std::thread::spawn(move || wait_and_reclaim(&waiting).unwrap());
        assert!(path.exists());
        if dies {
            die(directory);
        } else {
            directory.remove().unwrap();
        }
        assert_eq!(reaper.join().unwrap() && dies, dies);
        assert!(!path.exists());
    }
}
