//! Owns a private RabbitMQ: its own node, ports, folders, cookie and name server, all on loopback, ended by process id.
//! Nothing of a server that the machine may run is read or touched. Knows nothing of exchanges and messages.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::ports::take;
use crate::process::{Process, Program};

/// Debian keeps the real scripts here, one folder per version; those in `/usr/sbin` change the user.
const SCRIPTS: &str = "/usr/lib/rabbitmq/lib";

/// Erlang starts slowly, and slower on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(180);

/// What it says when it is ready.
const READY: &str = "Server startup complete";

/// A small disk and a small memory must not block publishers unless a test wants that.
const SETTINGS: &str = "
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.relative = 0.8
log.console = true
log.console.level = info
log.file = false
";

/// A server that may be started, killed and started again with what it kept.
#[derive(Debug)]
pub struct RabbitMq {
    // In the order in which they end.
    server: Option<Process>,
    _names: Process,
    folder: TempDir,
    scripts: PathBuf,
    ports: Ports,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    amqp: u16,
    amqps: u16,
    distribution: u16,
    names: u16,
}

impl RabbitMq {
    /// Takes ports and makes folders; nobody listens yet. Its certificate and the key of that, as PEM.
    pub fn prepare(certificate: &str, key: &str) -> anyhow::Result<Self> {
        let scripts = scripts()?;
        let folder = tempfile::Builder::new().prefix("rabbitmq-").tempdir()?;
        let ports = Ports::free()?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let tls = format!(
            "listeners.ssl.1 = 127.0.0.1:{}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n",
            ports.amqps,
            path("certificate.pem"),
            path("key.pem")
        );
        fs::write(path("rabbitmq.conf"), format!("{SETTINGS}{tls}"))?;
        fs::write(path("certificate.pem"), certificate)?;
        fs::write(path("key.pem"), key)?;
        fs::write(folder.path().join("plugins"), "[].\n")?;
        fs::write(folder.path().join("env.conf"), "")?;
        // In the foreground: one that becomes a daemon by itself would outlive the test.
        let names = Program::new("epmd")
            .args(["-port", &ports.names.to_string(), "-address", "127.0.0.1"])
            .start()
            .context("Erlang's name server")?;
        Ok(Self { server: None, _names: names, folder, scripts, ports })
    }

    /// Starts it and waits until it is ready.
    pub fn launch(&mut self) -> anyhow::Result<()> {
        ensure!(self.server.is_none(), "it runs already");
        let mut program = Program::new(self.scripts.join("rabbitmq-server"));
        for (name, value) in self.environment() {
            program = program.env(name, value);
        }
        let server = program.start()?;
        server.wait_for(START_LIMIT, |line| line.text.contains(READY))?;
        self.server = Some(server);
        Ok(())
    }

    /// As a power cut would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let server = self.server.take().context("it does not run")?;
        server.kill()?;
        server.wait(START_LIMIT)?;
        Ok(())
    }

    /// Says that its memory is full: from now on it takes no message, until [`RabbitMq::take_again`].
    pub fn take_nothing(&self) -> anyhow::Result<()> {
        self.control(&["set_vm_memory_high_watermark", "0"])
    }

    pub fn take_again(&self) -> anyhow::Result<()> {
        self.control(&["set_vm_memory_high_watermark", "0.8"])
    }

    /// Where it listens without TLS.
    pub fn port(&self) -> u16 {
        self.ports.amqp
    }

    /// Where it listens with TLS.
    pub fn tls_port(&self) -> u16 {
        self.ports.amqps
    }

    fn control(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(self.scripts.join("rabbitmqctl"));
        command.args(["--node", &self.node()]).args(arguments).envs(self.environment());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "rabbitmqctl {arguments:?}: {said}");
        Ok(())
    }

    fn node(&self) -> String {
        format!("test{}@localhost", self.ports.amqp)
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let loopback = "-kernel inet_dist_use_interface {127,0,0,1}".to_owned();
        vec![
            // Erlang keeps its cookie there.
            ("HOME", self.folder.path().display().to_string()),
            // The script becomes the server instead of standing beside it, so that there is one process to end.
            ("detached", "1".to_owned()),
            ("ERL_EPMD_PORT", self.ports.names.to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODENAME", self.node()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", self.ports.amqp.to_string()),
            ("RABBITMQ_DIST_PORT", self.ports.distribution.to_string()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", loopback.clone()),
            ("RABBITMQ_CTL_ERL_ARGS", loopback),
            ("RABBITMQ_CONF_ENV_FILE", path("env.conf")),
            ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", path("generated")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins")),
            ("RABBITMQ_MNESIA_BASE", path("data")),
            ("RABBITMQ_LOG_BASE", path("log")),
            ("RABBITMQ_PID_FILE", path("pid")),
        ]
    }
}

fn scripts() -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir(SCRIPTS).with_context(|| {
        format!("{SCRIPTS}: is rabbitmq-server installed? `cargo xtask test` installs it")
    })?;
    let mut found: Vec<PathBuf> = versions
        .filter_map(|version| Some(version.ok()?.path().join("sbin")))
        .filter(|scripts| scripts.join("rabbitmq-server").is_file())
        .collect();
    found.sort();
    found.pop().with_context(|| format!("no rabbitmq-server under {}", Path::new(SCRIPTS).display()))
}

impl Ports {
    /// Free at this moment; held together, so that they differ.
    fn free() -> anyhow::Result<Self> {
        let (amqp, amqps, distribution, names) = (take()?, take()?, take()?, take()?);
        let port = |listener: &TcpListener| anyhow::Ok(listener.local_addr()?.port());
        Ok(Self {
            amqp: port(&amqp)?,
            amqps: port(&amqps)?,
            distribution: port(&distribution)?,
            names: port(&names)?,
        })
    }
}
