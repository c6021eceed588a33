//! Owns a mounted tmpfs of a few megabytes, for tests that need a disk which is really full. Knows nothing of SQLite:
//! exact faults at exact operations are the business of [`crate::disk`].

use std::ffi::CString;
use std::path::Path;

use anyhow::Context;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// A folder that holds at most the given number of bytes. Unmounted and removed on drop.
#[derive(Debug)]
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts a tmpfs of `size_bytes` (rounded up to whole pages by the kernel).
    ///
    /// Fails with a sentence where mounting is not permitted; whether that fails the test is the test's decision.
    pub fn mount(size_bytes: u64) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("small-disk-").tempdir()?;
        let options = CString::new(format!("size={size_bytes},mode=0700"))?;
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
            .with_context(|| {
                format!("a tmpfs of {size_bytes} bytes could not be mounted; this needs root (CAP_SYS_ADMIN)")
            })?;
        Ok(Self { folder })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // DETACH: a test that fails with a file still open must not leave the mount behind.
        if let Err(error) = unmount(self.folder.path(), UnmountFlags::DETACH) {
            eprintln!("the small disk at {} stays mounted: {error}", self.folder.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    const SIZE_BYTES: u64 = 8 * 1024 * 1024;

    #[test]
    fn a_small_disk_is_full_after_its_size_and_gone_after_its_drop() {
        let disk = match SmallDisk::mount(SIZE_BYTES) {
            Ok(disk) => disk,
            Err(refused) => {
                assert!(!rustix::process::geteuid().is_root() || in_a_container(), "{refused:#}");
                assert!(refused.to_string().contains("needs root"), "{refused:#}");
                return;
            }
        };
        let path = disk.path().to_owned();
        let too_much = vec![1; 2 * SIZE_BYTES as usize];
        let error = fs::write(path.join("big"), &too_much).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        fs::remove_file(path.join("big")).unwrap();
        fs::write(path.join("small"), [1; 4096]).unwrap();

        drop(disk);
        assert!(!path.exists());
        assert!(!fs::read_to_string("/proc/mounts").unwrap().contains(path.to_str().unwrap()));
    }

    /// Root without the capability to mount, as most containers have it.
    fn in_a_container() -> bool {
        const CAP_SYS_ADMIN: u64 = 1 << 21;
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() & CAP_SYS_ADMIN == 0
    }
}
