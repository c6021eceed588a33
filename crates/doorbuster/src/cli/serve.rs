//! `serve`: from settings to a listening server, and from a signal to an orderly end.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::{Context as _, anyhow};
use clap::Args;
use doorbuster::app::Server;
use doorbuster::clock::Clock;
use doorbuster::config::Settings;
use doorbuster::edge::accept::BACKLOG_MAX;
use doorbuster::telemetry::init_logging;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use super::options::{SettingsOptions, warn_of};
use super::run_file::{RunFile, url};
use super::signals::Signals;
use super::{Exit, say};

/// Serves sales until it is told to stop.
///
/// Settings come from the defaults, then --config FILE, then DOORBUSTER_… variables, then flags; later wins.
/// The line `listening on http://ADDR:PORT` goes to standard output once buyers are served; logs go to standard
/// error. SIGTERM or Ctrl-C ends it in order; a second one at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  export DOORBUSTER_ADMIN_KEY=$(openssl rand -hex 32)
  export DOORBUSTER_PASS__SECRET=$(openssl rand -hex 32)
  export DOORBUSTER_AUTH__HS256_SECRET=the-secret-your-shop-signs-its-tokens-with
  doorbuster serve --data-dir /var/lib/doorbuster --listen 0.0.0.0:8080
  doorbuster serve --config shop.toml --set limits.per_buyer_per_s=2")]
pub struct Serve {
    #[command(flatten)]
    settings: SettingsOptions,
    /// The address for buyers, and for operators too unless `operator_listen` is set. Port 0: any free port.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

impl Serve {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let more: Vec<String> = self.listen.iter().map(|address| format!("listen={address}")).collect();
        let (settings, warnings) = match self.settings.load_checked(&more) {
            Ok(loaded) => loaded,
            Err(wrong) => {
                // A name with a slip may be what is missing.
                warn_of(&wrong.warnings);
                wrong.problems.iter().for_each(|problem| say::complain(&problem.to_string()));
                return Ok(Exit::Failed);
            }
        };
        let _logging = init_logging(&settings.telemetry)?;
        for warning in warnings {
            tracing::warn!(setting = warning.key, "{}", warning.sentence);
        }
        serve(settings).await
    }
}

async fn serve(settings: Settings) -> anyhow::Result<Exit> {
    doorbuster::crash::arm(std::env::var(doorbuster::crash::VARIABLE).ok().as_deref())?;
    let mut signals = Signals::listen()?;
    let data_dir = settings.data_dir.clone();
    let (listener, address) = bind("listen", &settings.listen)?;
    let operator =
        settings.operator_listen.as_deref().map(|text| bind("operator_listen", text)).transpose()?;
    let (operator, operator_address) = operator.unzip();

    let shutdown = CancellationToken::new();
    let server = Server::start(settings, Clock::system(), listener, operator, shutdown.clone()).await?;
    let run_file = RunFile::of(address, operator_address).write(&data_dir)?;
    // Scripts wait for this line: nothing that resembles it comes before.
    say::answer(&format!("listening on {}", url(address)));
    if let Some(address) = operator_address {
        say::answer(&format!("operator side at {}", url(address)));
    }

    let signalled = async {
        signals.next().await;
        tracing::info!("asked to end; requests under way are answered first");
        shutdown.cancel();
        signals.next().await;
    };
    let ended = tokio::select! {
        ended = server.until_the_end() => ended.map(|()| {
            tracing::info!("drained, ended in order");
            Exit::Done
        }),
        () = signalled => Err(anyhow!("ended at once, because a second signal asked for it; nothing that was answered is lost")),
    };
    drop(run_file);
    ended
}

/// A listener, and the address it really has.
pub fn bind(setting: &str, text: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let address: SocketAddr = text
        .parse()
        .with_context(|| format!("`{text}` is no address with a port, such as 127.0.0.1:8080"))?;
    let listen = || -> std::io::Result<_> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG_MAX)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => "another program listens there. Stop it, or choose another port",
            ErrorKind::AddrNotAvailable => "this machine has no such address. Use 0.0.0.0 for all it has",
            ErrorKind::PermissionDenied => "ports below 1024 need a privilege. Choose another port",
            _ => "the system refused it",
        };
        anyhow!("cannot listen on {address}: {advice} (setting `{setting}`). {error}")
    })
}
