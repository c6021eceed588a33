//! Logs, always to standard error (standard output belongs to the `listening on …` line and to command results),
//! and traces when a collector is named. docs/logging.md says which fields may be written and which never.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::TelemetrySettings;

/// Keeps traces flowing; dropping it sends what is left. Hold it until the process ends.
#[derive(Debug)]
#[must_use = "dropping it ends tracing"]
pub struct Guard {
    traces: Option<SdkTracerProvider>,
}

/// How long the end of the process may wait for the collector.
const LAST_TRACES_TIMEOUT: Duration = Duration::from_secs(5);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts logging for the whole process; call it once, first.
pub fn init_logging(settings: &TelemetrySettings) -> anyhow::Result<Guard> {
    let on_terminal = std::io::stderr().is_terminal();
    let wants_colour = on_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let look = Look::of(&settings.log_format, on_terminal, wants_colour);
    let traces = traces(settings)?;
    subscriber(settings, look, std::io::stderr, traces.as_ref())?
        .try_init()
        .context("logging already runs")?;
    Ok(Guard { traces })
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.traces.take().map(|all| all.shutdown_with_timeout(LAST_TRACES_TIMEOUT))
        {
            tracing::warn!(%error, "the last traces were not delivered");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Text { colour: bool },
    Json,
}

impl Look {
    fn of(format: &str, on_terminal: bool, colour: bool) -> Self {
        match format {
            "json" => Self::Json,
            "auto" if !on_terminal => Self::Json,
            _ => Self::Text { colour },
        }
    }
}

fn subscriber<W>(
    settings: &TelemetrySettings,
    look: Look,
    writer: W,
    traces: Option<&SdkTracerProvider>,
) -> anyhow::Result<impl Subscriber + Send + Sync + use<W>>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse(&settings.log_filter).context("telemetry.log_filter")?;
    // Without the hint nobody would know that this filter asks for nothing the other one leaves out, and every span and
    // every line of every level would be looked at one by one.
    let no_secrets = filter_fn(|metadata| !shows_secrets(metadata)).with_max_level_hint(LevelFilter::TRACE);
    let filter = filter.and(no_secrets);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match look {
        Look::Text { colour } => lines.with_ansi(colour).with_filter(filter).boxed(),
        Look::Json => lines.json().flatten_event(true).with_current_span(false).with_filter(filter).boxed(),
    };
    // Only our own spans: the exporter's HTTP client must not trace itself into a circle.
    let ours = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("doorbuster"));
    let spans = traces.map(|provider| {
        let tracer: SdkTracer = provider.tracer("doorbuster");
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours).boxed()
    });
    // One after the other, not an optional layer: one that is absent counts as one that wants everything.
    let mut layers = vec![lines];
    layers.extend(spans);
    Ok(Registry::default().with(layers))
}

/// The library of RabbitMQ writes frames, the first of which holds the password, and whole messages that came back,
/// with their buyers. Nothing else that it says below an error is needed: we say ourselves what became of a message.
fn shows_secrets(metadata: &Metadata<'_>) -> bool {
    *metadata.level() != Level::ERROR && metadata.target().starts_with("lapin")
}

/// `None` without a collector: then no span is ever built for it.
fn traces(settings: &TelemetrySettings) -> anyhow::Result<Option<SdkTracerProvider>> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(traces_url(endpoint))
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .context("telemetry.otlp_endpoint")?;
    // Decided at the root by the trace id, so that a trace is whole or absent on every node.
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.trace_sample_ratio)));
    let resource = Resource::builder().with_service_name("doorbuster").build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_sampler(sampler);
    Ok(Some(provider.with_resource(resource).build()))
}

fn traces_url(endpoint: &str) -> String {
    const PATH: &str = "/v1/traces";
    let base = endpoint.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::config::Settings;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Page {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn settings(flags: &[String]) -> TelemetrySettings {
        Settings::load(None, std::iter::empty(), flags).unwrap().telemetry
    }

    fn logged(look: Look, write: impl FnOnce()) -> String {
        logged_with(&settings(&[]), look, write)
    }

    fn logged_with(settings: &TelemetrySettings, look: Look, write: impl FnOnce()) -> String {
        let page = Page::default();
        let to = page.clone();
        let subscriber = subscriber(settings, look, move || to.clone(), None).unwrap();
        tracing::subscriber::with_default(subscriber, write);
        page.text()
    }

    #[test]
    fn machines_get_one_json_object_per_line_with_fields_on_top() {
        let text = logged(Look::Json, || tracing::info!(order_id = "01AB", "order\nrecorded"));
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["order_id"], "01AB");
        assert_eq!(line["message"], "order\nrecorded");
        assert_eq!(line["level"], "INFO");
    }

    #[test]
    fn people_get_text_without_escape_codes_unless_they_sit_at_a_terminal() {
        let write = || tracing::info!(sale_id = "s1", "sale published");
        let plain = logged(Look::Text { colour: false }, write);
        assert!(plain.contains("sale published") && plain.contains("sale_id=\"s1\""), "{plain}");
        assert!(!plain.contains('\x1b'));
        assert!(logged(Look::Text { colour: true }, write).contains('\x1b'));
    }

    #[test]
    fn what_a_buyer_wrote_cannot_move_the_operators_cursor() {
        let text = logged(Look::Text { colour: false }, || tracing::info!("name {}", "\x1b[2Jann"));
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn the_filter_is_obeyed() {
        assert_eq!(logged(Look::Json, || tracing::debug!("detail")), "");
    }

    #[test]
    fn the_steps_of_making_tables_are_silent_unless_somebody_asks_for_them() {
        let migrate = || tracing::info!(target: "rusqlite_migration", "some migrations to run");
        assert_eq!(logged(Look::Json, migrate), "");
        let own = settings(&["telemetry.log_filter=info".to_owned()]);
        assert_eq!(own.log_filter, "info", "a filter of one's own stays as it is");
        assert!(logged_with(&own, Look::Json, migrate).contains("some migrations"));
    }

    #[test]
    fn no_filter_shows_the_frames_of_rabbitmq_which_hold_its_password() {
        for filter in ["trace", "info", "lapin=trace", "info,lapin::io_loop=trace"] {
            let own = settings(&[format!("telemetry.log_filter={filter}")]);
            let text = logged_with(&own, Look::Json, || {
                tracing::trace!(target: "lapin::io_loop", "will write to buffer");
                tracing::warn!(target: "lapin::returned_messages", "Server returned us a message of ann");
                tracing::error!(target: "lapin::io_loop", "connection lost");
            });
            assert!(!text.contains("will write") && !text.contains("ann"), "{filter}: {text}");
            assert!(text.contains("connection lost"), "{filter}: {text}");
        }
    }

    #[test]
    fn auto_means_text_on_a_terminal_and_json_elsewhere() {
        assert_eq!(Look::of("auto", true, true), Look::Text { colour: true });
        assert_eq!(Look::of("auto", false, false), Look::Json);
        assert_eq!(Look::of("text", false, false), Look::Text { colour: false });
        assert_eq!(Look::of("json", true, true), Look::Json);
    }

    #[test]
    fn no_collector_means_no_tracer_and_no_spans() {
        assert!(traces(&settings(&[])).unwrap().is_none());
        logged(Look::Json, || {
            assert!(tracing::trace_span!("request").is_disabled());
            assert!(tracing::debug_span!("clerk_batch").is_disabled());
            assert_eq!(LevelFilter::current(), LevelFilter::INFO, "the cheapest no there is");
        });
    }

    #[tokio::test]
    async fn spans_reach_the_collector_before_the_guard_is_gone() {
        let collector = TcpListener::bind("127.0.0.1:0").unwrap();
        let flags = [
            format!("telemetry.otlp_endpoint=http://{}", collector.local_addr().unwrap()),
            "telemetry.trace_sample_ratio=1".to_owned(),
        ];
        let received = std::thread::spawn(move || receive_one(&collector));
        let settings = settings(&flags);
        let provider = traces(&settings).unwrap();
        let subscriber = subscriber(&settings, Look::Json, std::io::sink, provider.as_ref()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug_span!("clerk_batch", claims = 7).in_scope(|| {});
            tracing::trace_span!("request").in_scope(|| {});
            tracing::info_span!(target: "reqwest", "noise").in_scope(|| {});
        });
        drop(Guard { traces: provider });
        let request = received.join().unwrap();
        assert!(request.starts_with("POST /v1/traces HTTP/1.1"), "{request}");
        assert!(request.contains("clerk_batch") && request.contains("doorbuster"));
        assert!(request.contains("request"), "spans are not filtered by the level of the logs");
        assert!(!request.contains("noise"));
    }

    /// Reads one request whole, answers 200, returns what was read.
    fn receive_one(collector: &TcpListener) -> String {
        let (mut stream, _) = collector.accept().unwrap();
        let mut read = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let n = stream.read(&mut chunk).unwrap();
            read.extend_from_slice(&chunk[..n]);
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some(head) = text.find("\r\n\r\n") {
                let length = text.to_lowercase().split("content-length: ").nth(1).unwrap().to_owned();
                let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
                if read.len() >= head + 4 + length {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                    return text;
                }
            }
            assert!(n > 0, "the connection ended early: {text}");
        }
    }

    #[test]
    fn a_collector_may_be_given_with_or_without_its_path() {
        for given in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(traces_url(given), "http://c:4318/v1/traces");
        }
    }
}
