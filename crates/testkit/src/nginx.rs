//! Owns a private nginx: one process, its own port, folder and certificate, on loopback, ended by process id. Nothing of a
//! server that the machine may run is read or touched. Knows nothing of what stands behind it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::ports;
use crate::process::{Process, Program};

/// Where Debian puts it, which is not on every user's path.
const PROGRAM: &str = "/usr/sbin/nginx";

const START_LIMIT: Duration = Duration::from_secs(60);

/// What it says once it listens.
const READY: &str = "getrlimit(RLIMIT_NOFILE)";

/// One process in the foreground, so that there is one to end, and nothing outside of its folder.
const AROUND: &str = "
daemon off;
master_process off;
pid FOLDER/pid;
error_log stderr notice;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path FOLDER/body;
    proxy_temp_path FOLDER/proxy;
    fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi;
    scgi_temp_path FOLDER/scgi;
    BLOCKS
}
";

/// Ended when dropped.
#[derive(Debug)]
pub struct Nginx {
    // In the order in which they end.
    _server: Process,
    _folder: TempDir,
    port: u16,
}

/// What its blocks may name.
#[derive(Debug)]
pub struct Place {
    /// A free port of 127.0.0.1.
    pub port: u16,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Nginx {
    /// Starts it with the blocks that belong into `http`, and waits until it listens. Its certificate and the key of that,
    /// as PEM.
    pub fn start(
        certificate: &str,
        key: &str,
        blocks: impl FnOnce(&Place) -> String,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("nginx-").tempdir()?;
        let path = |name: &str| folder.path().join(name);
        let port = ports::take()?.local_addr()?.port();
        let place = Place { port, certificate: path("certificate.pem"), key: path("key.pem") };
        fs::write(&place.certificate, certificate)?;
        fs::write(&place.key, key)?;
        let settings = around(folder.path(), &blocks(&place));
        fs::write(path("nginx.conf"), settings)?;
        let server = Program::new(PROGRAM)
            .args(["-e", "stderr", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(path("nginx.conf"))
            .start()?;
        server.wait_for(START_LIMIT, |line| line.text.contains(READY))?;
        Ok(Self { _server: server, _folder: folder, port })
    }

    pub const fn port(&self) -> u16 {
        self.port
    }
}

fn around(folder: &Path, blocks: &str) -> String {
    AROUND.replace("FOLDER", &folder.display().to_string()).replace("BLOCKS", blocks)
}
