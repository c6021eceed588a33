//! A share of a core for one process, by the kernel's control groups, version 1 or 2. Knows nothing of what runs in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

/// Short, so that a throttled server is never frozen for long.
const PERIOD: Duration = Duration::from_millis(10);

/// A control group of our own, removed at the end.
#[derive(Debug)]
pub struct Quota {
    folder: PathBuf,
    pub what: String,
}

impl Quota {
    /// A group that may use so many thousandths of a core.
    pub fn new(thousandths: u32) -> anyhow::Result<Self> {
        let period_us = u64::try_from(PERIOD.as_micros())?;
        let quota_us = period_us * u64::from(thousandths) / 1_000;
        let mut reasons = Vec::new();
        for place in places()? {
            match place.make(quota_us, period_us) {
                Ok(quota) => return Ok(quota),
                Err(error) => reasons.push(format!("{}: {error:#}", place.parent.display())),
            }
        }
        bail!("no control group with a CPU quota can be made here ({})", reasons.join("; "))
    }

    /// The program, to be started in the group: so it sees from its first moment on what it may use, as in a container.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
            .arg(self.folder.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// How often and how long the group had to wait for its next period.
    pub fn throttled(&self) -> String {
        let stat = fs::read_to_string(self.folder.join("cpu.stat")).unwrap_or_default();
        stat.lines().filter(|line| line.contains("throttled")).collect::<Vec<_>>().join(", ")
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // The kernel lets a group go only once its last process is reaped.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where a group might be made.
#[derive(Debug)]
struct Place {
    version: Version,
    parent: PathBuf,
}

impl Place {
    fn make(&self, quota_us: u64, period_us: u64) -> anyhow::Result<Quota> {
        let folder = self.parent.join(format!("doorbuster-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).context("no group can be made")?;
        let quota = Quota { what: self.describe(quota_us, period_us), folder };
        match self.version {
            Version::One => {
                fs::write(quota.folder.join("cpu.cfs_period_us"), period_us.to_string())?;
                fs::write(quota.folder.join("cpu.cfs_quota_us"), quota_us.to_string())?;
            }
            Version::Two => {
                let limit = quota.folder.join("cpu.max");
                if !limit.exists() {
                    fs::write(self.parent.join("cgroup.subtree_control"), "+cpu")
                        .context("the cpu controller is not on")?;
                }
                ensure!(limit.exists(), "the group has no cpu.max");
                fs::write(limit, format!("{quota_us} {period_us}"))?;
            }
        }
        Ok(quota)
    }

    fn describe(&self, quota_us: u64, period_us: u64) -> String {
        match self.version {
            Version::One => {
                format!("cgroup v1: cpu.cfs_quota_us={quota_us}, cpu.cfs_period_us={period_us}")
            }
            Version::Two => format!("cgroup v2: cpu.max={quota_us} {period_us}"),
        }
    }
}

/// Our own group first, then the ones around it: version 2 allows no group below one that holds processes.
fn places() -> anyhow::Result<Vec<Place>> {
    let own = fs::read_to_string("/proc/self/cgroup").context("the kernel has no control groups")?;
    let mut places = Vec::new();
    for line in fs::read_to_string("/proc/mounts")?.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = words.as_slice() else { continue };
        let has_cpu = options.split(',').any(|option| option == "cpu");
        let version = match *kind {
            "cgroup" if has_cpu => Version::One,
            "cgroup2" => Version::Two,
            _ => continue,
        };
        let mount = Path::new(mount);
        let relative = own_group(&own, version).unwrap_or_default();
        let mut parent = mount.join(relative.trim_start_matches('/'));
        while parent.starts_with(mount) {
            places.push(Place { version, parent: parent.clone() });
            if !parent.pop() {
                break;
            }
        }
    }
    ensure!(!places.is_empty(), "no control groups for CPU are mounted here");
    Ok(places)
}

fn own_group(own: &str, version: Version) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match version {
            Version::One => controllers.split(',').any(|controller| controller == "cpu"),
            Version::Two => controllers.is_empty(),
        };
        ours.then_some(group)
    })
}
