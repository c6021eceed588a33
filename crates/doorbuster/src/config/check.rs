//! Whether the settings make sense together. Asked once, before a port is opened, and all that is wrong is said
//! at once: nobody should repair a configuration one restart at a time.
//!
//! It looks at the settings alone; files, networks and databases are not touched.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use rules::pass::SECRET_BYTES_MIN;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use super::{ORDER_IN_URL, Settings, TelemetrySettings};
use crate::edge::auth;
use crate::edge::limits::ClientIp;
use crate::guard::is_loopback;
use crate::outbox::endpoint::check_types;
use crate::outbox::rabbit;
use crate::payment::providers::{NO_SHOP, Providers};

/// Something that must be changed before the product may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub key: &'static str,
    pub sentence: String,
}

/// Something that works and is probably not what was meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub key: &'static str,
    pub sentence: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.sentence)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.sentence)
    }
}

/// What a process can be told to do. Embedded, one process does all of it.
pub const ROLES: [&str; 6] = ["edge", "desk", "clerk", "sweeper", "courier", "auditor"];

/// The longest `payment.return_url`, in characters: with an order's id in it, Alipay takes 256.
const RETURN_URL_CHARS_MAX: usize = 200;

impl Settings {
    /// All problems, or, if there are none, what deserves a second look.
    pub fn check(&self) -> Result<Vec<Warning>, Vec<Problem>> {
        let mut problems = Problems::default();
        self.check_secrets(&mut problems);
        self.check_auth(&mut problems);
        self.check_addresses(&mut problems);
        self.check_backends(&mut problems);
        self.check_roles(&mut problems);
        self.check_ranges(&mut problems);
        self.check_relations(&mut problems);
        self.check_payment(&mut problems);
        self.check_broker(&mut problems);
        self.telemetry.check(&mut problems);
        if problems.0.is_empty() { Ok(self.warnings()) } else { Err(problems.0) }
    }

    fn check_secrets(&self, problems: &mut Problems) {
        problems.required_secret("admin_key", "DOORBUSTER_ADMIN_KEY", &self.admin_key);
        problems.required_secret("pass.secret", "DOORBUSTER_PASS__SECRET", &self.pass.secret);
        if self.is_within_reach() {
            let short = self.short_secrets().map(|(key, sentence)| Problem { key, sentence });
            problems.0.extend(short);
        }
    }

    /// Secrets that could be guessed.
    fn short_secrets(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all = [
            ("admin_key", &self.admin_key),
            ("pass.secret", &self.pass.secret),
            ("pass.previous_secret", &self.pass.previous_secret),
            ("auth.hs256_secret", &self.auth.hs256_secret),
        ];
        let length = |secret: &SecretString| secret.expose_secret().len();
        let set = all.into_iter().filter_map(move |(key, secret)| Some((key, secret.as_ref().map(length)?)));
        set.filter(|(_, length)| *length < SECRET_BYTES_MIN).map(|(key, length)| {
            let sentence = format!(
                "is {length} bytes long and could be guessed; at least {SECRET_BYTES_MIN} are needed where others \
                 can reach the server, for example from: openssl rand -hex 32"
            );
            (key, sentence)
        })
    }

    /// Whether others than this machine reach one of the listeners.
    fn is_within_reach(&self) -> bool {
        is_public(&self.listen) || self.operator_listen.as_deref().is_some_and(is_public)
    }

    /// Whether buyers from elsewhere may come, as the sandbox sees it: by the listener or by a proxy.
    fn lets_others_in(&self) -> bool {
        is_public(&self.listen) || self.is_behind_a_proxy()
    }

    /// Whether something beside us may let others in, as far as the settings say: a proxy is named, or buyers come to an
    /// address that is not this machine's.
    #[must_use]
    pub fn is_behind_a_proxy(&self) -> bool {
        let elsewhere = |url: &str| !is_loopback(url);
        !self.limits.trusted_proxies.is_empty() || self.public_url.as_deref().is_some_and(elsewhere)
    }

    fn check_auth(&self, problems: &mut Problems) {
        let auth = &self.auth;
        match (&auth.hs256_secret, &auth.jwks) {
            (Some(_), Some(_)) => problems.add("auth", "set either auth.hs256_secret or auth.jwks, not both."),
            (None, None) => problems.add(
                "auth",
                "nobody could log in. Set DOORBUSTER_AUTH__HS256_SECRET to the secret the shop signs its tokens \
                 with, or DOORBUSTER_AUTH__JWKS to its public keys.",
            ),
            (None, Some(jwks)) => {
                if auth.audience.is_none() {
                    problems.add(
                        "auth.audience",
                        "auth.jwks needs it: without an audience a token made for another service would open ours.",
                    );
                }
                if let Err(why) = auth::check_jwks(jwks) {
                    problems.add("auth.jwks", why);
                }
            }
            (Some(_), None) => {}
        }
        if auth.login_url.as_deref().is_some_and(|url| !is_web(url)) {
            problems.add("auth.login_url", "must begin with https:// or http://.");
        }
    }

    fn check_addresses(&self, problems: &mut Problems) {
        let is_address = |text: &str| text.parse::<SocketAddr>().is_ok();
        if !is_address(&self.listen) {
            problems.add("listen", "must be an address and a port, for example 127.0.0.1:8080.");
        }
        if let Some(operator) = &self.operator_listen {
            if !is_address(operator) {
                problems.add("operator_listen", "must be an address and a port, for example 127.0.0.1:8081.");
            } else if *operator == self.listen && !operator.ends_with(":0") {
                problems.add("operator_listen", "must differ from listen; leave it empty to share one.");
            }
        }
        if let Err(entry) = ClientIp::trusting(&self.limits.trusted_proxies) {
            let sentence = format!("`{entry}` is neither a network such as 10.0.0.0/8 nor an address.");
            problems.add("limits.trusted_proxies", sentence);
        }
        if self.data_dir.as_os_str().is_empty() {
            problems.add("data_dir", "must name a folder.");
        }
    }

    fn check_backends(&self, problems: &mut Problems) {
        let gate = GateKind::of(self.gate.as_str());
        let ledger = LedgerKind::of(self.ledger.as_str());
        if gate == GateKind::Unknown {
            problems.add("gate", format!("`{}` is no gate. Use \"memory\".", self.gate));
        }
        if ledger == LedgerKind::Unknown {
            problems.add("ledger", format!("`{}` is no ledger. Use \"sqlite:PATH\".", self.ledger));
        }
        match (gate, ledger) {
            (GateKind::Memory, LedgerKind::Shared) => problems.add(
                "gate",
                "a memory gate beside a shared ledger would lose answered claims when another node takes over. \
                 Use the sqlite ledger with it.",
            ),
            (GateKind::Redis, LedgerKind::Sqlite) => problems.add(
                "ledger",
                "a Redis gate is shared by many nodes, a sqlite ledger is one node's own: claims of the others \
                 would never become orders. Use the memory gate with it.",
            ),
            (GateKind::Redis, LedgerKind::Shared) => problems.add(
                "gate",
                "Redis with PostgreSQL or MySQL is not built yet in this version. \
                 Use gate = \"memory\" and ledger = \"sqlite:PATH\".",
            ),
            (GateKind::Memory, LedgerKind::Sqlite) | (GateKind::Unknown, _) | (_, LedgerKind::Unknown) => {}
        }
    }

    fn check_roles(&self, problems: &mut Problems) {
        for role in self.roles.iter().filter(|role| !ROLES.contains(&role.as_str())) {
            problems.add("roles", format!("`{role}` is no role. The roles are {}.", ROLES.join(", ")));
        }
        let missing: Vec<_> =
            ROLES.into_iter().filter(|role| !self.roles.iter().any(|r| r == role)).collect();
        if !missing.is_empty() && GateKind::of(self.gate.as_str()) == GateKind::Memory {
            problems.add(
                "roles",
                format!(
                    "the memory gate lives inside one process, which must therefore have all roles; missing: {}.",
                    missing.join(", ")
                ),
            );
        }
    }

    /// Reading the keys is the check: what cannot be read here could not verify anything later.
    fn check_payment(&self, problems: &mut Problems) {
        if self.public_url.as_deref().is_some_and(|url| !is_web(url) || url.contains(['?', '#'])) {
            problems.add("public_url", "must begin with https:// (or http://) and have no ? and no #.");
        }
        if self.payment.return_url.as_deref().is_some_and(|url| !leads_to_order(url)) {
            problems.add(
                "payment.return_url",
                format!(
                    "must begin with https:// (or http://), hold {ORDER_IN_URL} once or more behind the host's name, no other \
                     braces and no blanks, and have at most {RETURN_URL_CHARS_MAX} characters: for example \
                     https://shop.example/my-orders/{ORDER_IN_URL}."
                ),
            );
        }
        match Providers::new(&self.payment, &NO_SHOP) {
            Err(found) => problems.0.extend(found),
            Ok(providers) if providers.names().next().is_some() && self.public_url.is_none() => problems.add(
                "public_url",
                "is needed with a payment provider, which must know where to send buyers and notifications: \
                 for example https://sale.shop.example.",
            ),
            Ok(_) => {}
        }
    }

    fn check_broker(&self, problems: &mut Problems) {
        let broker = &self.broker;
        let url = broker.url.as_str();
        if !url.is_empty()
            && let Err(why) = rabbit::check_url(url)
        {
            problems.add("broker.url", why);
        }
        if let Err(why) = rabbit::check_exchange(&broker.exchange) {
            problems.add("broker.exchange", why);
        }
        if rabbit::Key::parse(&broker.key).is_none() {
            problems.add("broker.key", "must be type or order_id.");
        }
        if let Err(why) = check_types(&broker.types) {
            problems.add("broker.types", why);
        }
        problems.range("broker.timeout_s", broker.timeout_s, 1..=300, "seconds");
        problems.range("broker.in_flight", broker.in_flight, 1..=1_000, "messages");
    }

    fn check_ranges(&self, problems: &mut Problems) {
        let limits = &self.limits;
        const SECONDS: &str = "seconds";
        const BYTES: &str = "bytes";
        problems.range("drain_s", self.drain_s, 0..=600, SECONDS);
        problems.range("edge_threads", self.edge_threads, 0..=1_024, "threads");
        problems.range("pass.lead_s", self.pass.lead_s, 0..=604_800, SECONDS);
        problems.range("pass.ttl_s", self.pass.ttl_s, 1..=86_400, SECONDS);
        problems.range("limits.limiter_keys", limits.limiter_keys, 8..=100_000_000, "keys");
        problems.range("limits.in_flight", limits.in_flight, 1..=1_000_000, "requests");
        problems.range("limits.waiters", limits.waiters, 0..=10_000_000, "waits");
        problems.range("limits.reserve", limits.reserve, 1..=1_000_000, "requests");
        problems.range("limits.connections", limits.connections, 0..=10_000_000, "connections");
        problems.range("limits.header_timeout_s", limits.header_timeout_s, 1..=300, SECONDS);
        problems.range("limits.body_timeout_s", limits.body_timeout_s, 1..=300, SECONDS);
        problems.range("limits.idle_timeout_s", limits.idle_timeout_s, 1..=3_600, SECONDS);
        problems.range("limits.body_bytes", limits.body_bytes, 4_096..=1_048_576, BYTES);
        problems.range("limits.header_bytes", limits.header_bytes, 8_192..=1_048_576, BYTES);
        problems.range("limits.sockets", limits.sockets, 0..=10_000_000, "sockets");
        problems.range("limits.sockets_per_buyer", limits.sockets_per_buyer, 1..=1_000, "sockets");
        problems.range("limits.wait_s", limits.wait_s, 1..=300, SECONDS);
        problems.range("limits.stream_life_s", limits.stream_life_s, 1..=86_400, SECONDS);
        problems.range("limits.ping_s", limits.ping_s, 1..=300, SECONDS);
        problems.range("limits.registrations", limits.registrations, 1..=1_000_000_000, "registrations");
        problems.range("queue.capacity", self.queue.capacity, 1..=16_777_216, "claims");
        problems.range("queue.batch", self.queue.batch, 1..=65_536, "claims");
        problems.range("clerk.batch", self.clerk.batch, 1..=65_536, "claims");
        problems.range("clerk.batch_ms", self.clerk.batch_ms, 1..=1_000, "milliseconds");
        problems.range("challenge.pow_cost", self.challenge.pow_cost, 1..=10_000_000, "rounds");
        problems.range("challenge.pow_tries", self.challenge.pow_tries, 2..=10_000_000, "attempts");
        problems.range("challenge.life_s", self.challenge.life_s, 10..=3_600, SECONDS);
        problems.range("challenge.picture_pool", self.challenge.picture_pool, 1..=100_000, "pictures");
        problems.range(
            "challenge.spent_limit",
            self.challenge.spent_limit,
            1_000..=100_000_000,
            "challenges",
        );
        problems.range("strikes.limit", self.strikes.limit, 0..=1_000, "strikes");
        problems.range("strikes.window_days", self.strikes.window_days, 1..=3_650, "days");
        problems.range("strikes.block_hours", self.strikes.block_hours, 1..=87_600, "hours");
        problems.range("storefront.cooldown_s", self.storefront.cooldown_s, 0..=3_600, SECONDS);
        problems.range("webhooks.timeout_s", self.webhooks.timeout_s, 1..=300, SECONDS);
        problems.range("webhooks.in_flight", self.webhooks.in_flight, 1..=1_000, "deliveries");
        problems.range("webhooks.retry_hours", self.webhooks.retry_hours, 1..=720, "hours");
        problems.range("webhooks.keep_hours", self.webhooks.keep_hours, 1..=87_600, "hours");
        problems.range("audit.every_s", self.audit.every_s, 0..=86_400, SECONDS);
        problems.range("audit.after_s", self.audit.after_s, 0..=86_400, SECONDS);
        problems.range("audit.apart_ms", self.audit.apart_ms, 100..=600_000, "milliseconds");
        problems.range("audit.queued_s", self.audit.queued_s, 5..=86_400, SECONDS);
        problems.range("audit.unpaid_s", self.audit.unpaid_s, 10..=86_400, SECONDS);
        problems.range("audit.captured_s", self.audit.captured_s, 10..=86_400, SECONDS);
        problems.range("audit.refund_s", self.audit.refund_s, 60..=604_800, SECONDS);
    }

    fn check_relations(&self, problems: &mut Problems) {
        if self.queue.batch > self.queue.capacity {
            problems.add("queue.batch", "must not exceed queue.capacity: such a batch could never gather.");
        }
        if self.webhooks.keep_hours < self.webhooks.retry_hours {
            problems.add(
                "webhooks.keep_hours",
                "must be at least webhooks.retry_hours: an event cannot be tried again once it is dropped.",
            );
        }
    }

    fn warnings(&self) -> Vec<Warning> {
        let limits = &self.limits;
        let mut warnings = self.unknown.clone();
        if !self.is_within_reach() {
            warnings.extend(self.short_secrets().map(|(key, sentence)| Warning { key, sentence }));
        }
        let mut warn = |key, sentence: &str| warnings.push(Warning { key, sentence: sentence.to_owned() });
        if limits.per_ip_per_s == 0 && limits.per_buyer_per_s == 0 {
            warn("limits", "both rates are off: one script can take the share of a thousand buyers.");
        }
        if is_public(&self.listen) && limits.per_ip_per_s > 0 && limits.trusted_proxies.is_empty() {
            warn(
                "limits.trusted_proxies",
                "is empty. If a proxy stands in front, all buyers will share its address and its rate limit.",
            );
        }
        if is_public(&self.listen) && self.demo {
            warn("listen", "demo mode is on and others can reach it: anybody may log in and \"pay\".");
        }
        if self.demo && self.auth.jwks.is_some() {
            warn(
                "demo",
                "is on, but with auth.jwks there is no secret to sign with: /api/v1/demo/login does not exist.",
            );
        }
        let has_real = |providers: Providers| providers.names().next().is_some();
        if self.payment.sandbox && !self.demo && self.lets_others_in() {
            warn(
                "payment.sandbox",
                "is on and others can reach the server, so it serves rehearsals only: orders of other sales need a real \
                 provider.",
            );
        } else if self.payment.sandbox && Providers::new(&self.payment, &NO_SHOP).is_ok_and(has_real) {
            warn(
                "payment.sandbox",
                "is on beside a real provider: whoever reaches a loopback listener, also through a proxy, can \"pay\" there.",
            );
        }
        if same(&self.admin_key, &self.pass.secret) || same(&self.auth.hs256_secret, &self.pass.secret) {
            warn("pass.secret", "is used for something else too: who learns one secret then holds both.");
        }
        warnings
    }
}

impl TelemetrySettings {
    fn check(&self, problems: &mut Problems) {
        if !["text", "json", "auto"].contains(&self.log_format.as_str()) {
            problems.add("telemetry.log_format", "must be \"text\", \"json\" or \"auto\".");
        }
        if let Err(e) = EnvFilter::builder().parse(&self.log_filter) {
            problems.add("telemetry.log_filter", format!("cannot be read ({e}). For example: info."));
        }
        if self.otlp_endpoint.as_ref().is_some_and(|url| !url.starts_with("http")) {
            problems.add("telemetry.otlp_endpoint", "must be an http:// or https:// address.");
        }
        if !(0.0..=1.0).contains(&self.trace_sample_ratio) {
            problems.add("telemetry.trace_sample_ratio", "must lie between 0 and 1.");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GateKind {
    Memory,
    Redis,
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LedgerKind {
    Sqlite,
    Shared,
    Unknown,
}

impl GateKind {
    fn of(url: &str) -> Self {
        match url.split("://").next() {
            Some("memory") if !url.contains("://") => Self::Memory,
            Some("redis" | "rediss" | "redis+sentinel" | "redis+cluster") if url.contains("://") => {
                Self::Redis
            }
            _ => Self::Unknown,
        }
    }
}

impl LedgerKind {
    fn of(url: &str) -> Self {
        match url.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Self::Sqlite,
            Some(("postgres" | "postgresql" | "mysql" | "mariadb", _)) => Self::Shared,
            _ => Self::Unknown,
        }
    }
}

fn is_public(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| !address.ip().is_loopback())
}

fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// Whether an address names the order's page once [`ORDER_IN_URL`] is replaced, whatever the order.
fn leads_to_order(url: &str) -> bool {
    let Some((before, _)) = url.split_once(ORDER_IN_URL) else { return false };
    let filled = url.replace(ORDER_IN_URL, "0");
    let host = |text: &str| text.parse::<http::Uri>().ok()?.authority().cloned();
    is_web(url)
        && url.chars().count() <= RETURN_URL_CHARS_MAX
        && !filled.contains(['{', '}'])
        // The same host for all orders, and one that there is.
        && host(&filled).is_some_and(|filled| host(before) == Some(filled))
}

fn same(a: &Option<SecretString>, b: &Option<SecretString>) -> bool {
    a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a.expose_secret() == b.expose_secret())
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, key: &'static str, sentence: impl Into<String>) {
        self.0.push(Problem { key, sentence: sentence.into() });
    }

    fn required_secret(&mut self, key: &'static str, variable: &str, secret: &Option<SecretString>) {
        if secret.is_none() {
            let sentence = format!(
                "is missing. Set {variable} to a secret of at least {SECRET_BYTES_MIN} bytes, \
                 for example: export {variable}=$(openssl rand -hex 32)"
            );
            self.add(key, sentence);
        }
    }

    fn range<N>(&mut self, key: &'static str, value: N, allowed: RangeInclusive<N>, unit: &str)
    where
        N: PartialOrd + fmt::Display,
    {
        if !allowed.contains(&value) {
            let (least, most) = (allowed.start(), allowed.end());
            self.add(key, format!("is {value}; it must lie between {least} and {most} {unit}."));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: [&str; 3] = [
        "admin_key=0123456789abcdef0123456789abcdef-admin",
        "pass.secret=0123456789abcdef0123456789abcdef-pass",
        "auth.hs256_secret=0123456789abcdef0123456789abcdef-auth",
    ];

    fn with(flags: &[&str]) -> Settings {
        let flags: Vec<String> = SECRETS.iter().chain(flags).map(ToString::to_string).collect();
        Settings::load(None, std::iter::empty(), &flags).unwrap()
    }

    fn problems(flags: &[&str]) -> Vec<String> {
        with(flags).check().unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_defaults_with_secrets_have_neither_problems_nor_warnings() {
        assert_eq!(with(&[]).check(), Ok(vec![]));
    }

    #[test]
    fn without_secrets_all_that_is_missing_is_said_at_once_and_how_to_set_it() {
        let bare = Settings::load(None, std::iter::empty(), &[]).unwrap().check().unwrap_err();
        let keys: Vec<_> = bare.iter().map(|problem| problem.key).collect();
        assert_eq!(keys, ["admin_key", "pass.secret", "auth"]);
        assert!(bare[0].sentence.contains("export DOORBUSTER_ADMIN_KEY=$(openssl rand -hex 32)"));
        assert!(bare[1].sentence.contains("DOORBUSTER_PASS__SECRET"));
        assert!(bare[2].sentence.contains("DOORBUSTER_AUTH__HS256_SECRET"));
    }

    #[test]
    fn each_mistake_is_named_with_its_setting() {
        let cases: &[(&str, &str, &str)] = &[
            ("auth.jwks=/etc/keys.json", "auth: ", "not both"),
            ("auth.login_url=javascript:alert(1)", "auth.login_url: ", "https://"),
            ("listen=8080", "listen: ", "address and a port"),
            ("operator_listen=127.0.0.1:8080", "operator_listen: ", "differ"),
            ("operator_listen=here", "operator_listen: ", "address and a port"),
            ("data_dir=", "data_dir: ", "folder"),
            ("limits.trusted_proxies=10.0.0.0/8,proxy", "limits.trusted_proxies: ", "`proxy`"),
            ("gate=tape", "gate: ", "`tape`"),
            ("ledger=paper", "ledger: ", "`paper`"),
            ("ledger=postgres://db/shop", "gate: ", "lose answered claims"),
            ("ledger=mysql://db/shop", "gate: ", "lose answered claims"),
            ("gate=redis://cache", "ledger: ", "never become orders"),
            ("roles=edge,desk,clerk,sweeper,courier,auditor,cook", "roles: ", "`cook`"),
            ("roles=edge,desk", "roles: ", "missing: clerk, sweeper, courier, auditor"),
            ("limits.in_flight=0", "limits.in_flight: ", "between 1 and 1000000 requests"),
            ("pass.ttl_s=0", "pass.ttl_s: ", "between 1 and 86400 seconds"),
            ("pass.lead_s=604801", "pass.lead_s: ", "between 0 and 604800 seconds"),
            ("queue.capacity=100", "queue.batch: ", "queue.capacity"),
            (
                "payment.stripe.webhook_secrets=whsec_0123456789abcdef0123456789",
                "payment.stripe.secret_key: ",
                "missing",
            ),
            ("telemetry.log_format=xml", "telemetry.log_format: ", "json"),
            ("telemetry.log_filter=info,=,", "telemetry.log_filter: ", "cannot be read"),
            ("telemetry.otlp_endpoint=collector:4317", "telemetry.otlp_endpoint: ", "http://"),
            ("telemetry.trace_sample_ratio=2", "telemetry.trace_sample_ratio: ", "between 0 and 1"),
        ];
        for (flag, key, sentence) in cases {
            let said = problems(&[flag]);
            assert_eq!(said.len(), 1, "{flag}: {said:?}");
            assert!(said[0].starts_with(key) && said[0].contains(sentence), "{flag}: {said:?}");
        }
    }

    #[test]
    fn a_secret_that_could_be_guessed_is_refused_where_others_reach_the_server() {
        let cases = [
            ("admin_key", "short", "5 bytes"),
            ("pass.secret", "0123456789012345678901234567890", "31 bytes"),
            ("pass.previous_secret", "short", "at least 32"),
            ("auth.hs256_secret", "short", "5 bytes"),
        ];
        for (key, secret, sentence) in cases {
            let flag = format!("{key}={secret}");
            for public in ["listen=0.0.0.0:80", "operator_listen=0.0.0.0:81", "listen=[::]:80"] {
                let said = problems(&[&flag, public]);
                assert!(
                    said.len() == 1 && said[0].starts_with(key) && said[0].contains(sentence),
                    "{said:?}"
                );
            }
            let warned = with(&[&flag, "listen=127.0.0.1:0", "operator_listen=[::1]:0"]).check().unwrap();
            assert!(warned.len() == 1 && warned[0].key == key, "{warned:?}");
            assert!(warned[0].sentence.contains(sentence), "{warned:?}");
        }
        for key in ["admin_key", "pass.secret"] {
            let said = problems(&[&format!("{key}=")]);
            assert!(said.len() == 1 && said[0].contains("is missing"), "{said:?}");
        }
    }

    #[test]
    fn a_rate_can_be_raised_alone_and_a_pass_may_be_short_or_early() {
        let flags = ["limits.per_buyer_per_s=1000", "limits.per_ip_per_s=1000", "limits.per_buyer_burst=1"];
        assert_eq!(with(&flags).check(), Ok(vec![]));
        assert_eq!(with(&["pass.ttl_s=1", "pass.lead_s=604800"]).check(), Ok(vec![]));
    }

    #[test]
    fn the_cluster_pair_is_refused_as_not_built_yet() {
        for ledger in ["ledger=postgres://db/shop", "ledger=mysql://db/shop"] {
            for gate in ["gate=redis://c", "gate=redis+sentinel://c", "gate=redis+cluster://c"] {
                let said = problems(&[gate, ledger]);
                assert!(said.len() == 1 && said[0].contains("not built yet"), "{said:?}");
            }
        }
    }

    #[test]
    fn public_keys_need_an_audience_and_a_safe_way_here() {
        let said = problems(&["auth.hs256_secret=", "auth.jwks=http://shop/keys"]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            with(&["auth.hs256_secret=", "auth.jwks=https://shop/keys", "auth.audience=a"]).check().is_ok()
        );
    }

    const WEBHOOK_SECRET: &str = "payment.stripe.webhook_secrets=whsec_0123456789abcdef0123456789abcdef";

    #[test]
    fn a_real_provider_must_know_where_we_are() {
        let said = problems(&["payment.stripe.secret_key=sk_test_1", WEBHOOK_SECRET]);
        assert!(said.len() == 1 && said[0].starts_with("public_url: is needed"), "{said:?}");
        for bad in
            ["public_url=shop.example", "public_url=ftp://shop.example", "public_url=https://shop.example/?a"]
        {
            let said = problems(&[bad]);
            assert!(said.len() == 1 && said[0].starts_with("public_url: must begin"), "{said:?}");
        }
    }

    #[test]
    fn buyers_come_back_to_the_page_of_their_order() {
        for good in [
            "https://shop.example/my-orders/{order}",
            "http://127.0.0.1:3000/done?order={order}&again={order}",
            "https://shop.example/#/orders/{order}",
        ] {
            assert_eq!(with(&[&format!("payment.return_url={good}")]).check(), Ok(vec![]), "{good}");
        }
        let long = format!("https://shop.example/{}/{{order}}", "x".repeat(200));
        for bad in [
            "https://shop.example/my-orders",
            "shop.example/{order}",
            "javascript:alert('{order}')",
            "https://{order}.shop.example/",
            "https://shop.example{order}",
            "https://shop.example:80{order}/",
            "https:///{order}",
            "https://shop.example/{buyer}/{order}",
            "https://shop.example/my orders/{order}",
            &long,
        ] {
            let said = problems(&[&format!("payment.return_url={bad}")]);
            let named = said.len() == 1 && said[0].starts_with("payment.return_url: must begin");
            assert!(named && said[0].contains("my-orders/{order}"), "{bad}: {said:?}");
        }
    }

    #[test]
    fn several_problems_come_together() {
        assert_eq!(problems(&["listen=x", "gate=tape", "pass.ttl_s=0", "roles="]).len(), 3);
        assert_eq!(problems(&["listen=x", "pass.ttl_s=0", "roles="]).len(), 3);
    }

    #[test]
    fn what_works_but_was_hardly_meant_is_a_warning() {
        let warned = |flags: &[&str]| -> Vec<&str> {
            with(flags).check().unwrap().into_iter().map(|warning| warning.key).collect()
        };
        assert_eq!(warned(&["limits.per_ip_per_s=0", "limits.per_buyer_per_s=0"]), ["limits"]);
        assert_eq!(warned(&["listen=0.0.0.0:80"]), ["limits.trusted_proxies"]);
        assert_eq!(
            warned(&["listen=0.0.0.0:80", "limits.trusted_proxies=10.0.0.0/8", "demo=true"]),
            ["listen"]
        );
        assert_eq!(warned(&["pass.secret=0123456789abcdef0123456789abcdef-admin"]), ["pass.secret"]);
        let published = ["auth.hs256_secret=", "auth.jwks=https://shop.example/jwks", "auth.audience=drops"];
        assert_eq!(warned(&published), Vec::<&str>::new());
        assert_eq!(warned(&[&published[..], &["demo=true"]].concat()), ["demo"]);
        let public = ["listen=0.0.0.0:80", "limits.trusted_proxies=10.0.0.0/8"];
        let sentence =
            |flag: &str| with(&[&public[..], &[flag]].concat()).check().unwrap().remove(0).to_string();
        let sandbox = sentence("payment.sandbox=true");
        assert!(sandbox.contains("serves rehearsals only") && !sandbox.contains("log in"), "{sandbox}");
        let demo = sentence("demo=true");
        assert!(demo.contains("anybody may log in") && !demo.contains("sandbox"), "{demo}");
        assert_eq!(
            warned(&["payment.sandbox=true"]),
            Vec::<&str>::new(),
            "at home it serves everybody, as meant"
        );
        let stripe =
            ["payment.stripe.secret_key=sk_test_1", "public_url=https://shop.example", WEBHOOK_SECRET];
        assert_eq!(warned(&stripe), Vec::<&str>::new());
        assert_eq!(warned(&[&stripe[..], &["payment.sandbox=true"]].concat()), ["payment.sandbox"]);
    }
}
