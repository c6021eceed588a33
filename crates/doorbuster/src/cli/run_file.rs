//! `run.json` in the data folder: where a running server says that it runs, so that the other commands find it. The
//! lock beside it decides who may use the folder; this file only tells.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use doorbuster::guard::reachable;
use serde::{Deserialize, Serialize};

const NAME: &str = "run.json";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunFile {
    pub url: String,
    /// Where the operator's calls go; the same as `url` unless operators have a listener of their own.
    pub operator_url: String,
    pub pid: u32,
    pub version: String,
}

/// Removes the file when the server has ended.
#[derive(Debug)]
#[must_use = "dropping it removes the file"]
pub struct Written(PathBuf);

impl RunFile {
    pub fn of(buyers: SocketAddr, operators: Option<SocketAddr>) -> Self {
        let url = url(reachable(buyers));
        Self {
            operator_url: operators.map_or_else(|| url.clone(), |address| self::url(reachable(address))),
            url,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Appears whole or not at all: a reader never meets half a file.
    pub fn write(&self, data_dir: &Path) -> anyhow::Result<Written> {
        let path = data_dir.join(NAME);
        let mut file = tempfile::NamedTempFile::new_in(data_dir).context("run.json cannot be written")?;
        serde_json::to_writer(&mut file, self)?;
        file.write_all(b"\n")?;
        file.persist(&path).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Written(path))
    }

    /// What the last server of this folder said; it may have died without taking it back.
    pub fn read(data_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(data_dir.join(NAME)).ok()?).ok()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, "run.json could not be removed");
        }
    }
}

pub fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let written = RunFile::of("0.0.0.0:8080".parse().unwrap(), Some("[::]:81".parse().unwrap()));
        let file = written.write(folder.path()).unwrap();
        let read = RunFile::read(folder.path()).unwrap();
        assert_eq!(
            (read.url.as_str(), read.operator_url.as_str()),
            ("http://127.0.0.1:8080", "http://[::1]:81")
        );
        drop(file);
        assert!(RunFile::read(folder.path()).is_none());
    }
}
