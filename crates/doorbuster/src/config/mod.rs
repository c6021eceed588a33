//! What can be set. One struct per topic, the same names in the file, the environment and the flags.
//!
//! `config/default.toml` is the reference: it holds every name, its default and the reason. This file deliberately
//! knows no defaults of its own, so that there is one place to read and none to disagree.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};

mod check;
mod load;

pub use check::{Problem, Warning};
pub use load::{ConfigError, Misfit, Wrong};

/// Every setting with its unit, default and reason; built in, so that a binary alone is complete.
pub const DEFAULT_TOML: &str = include_str!("../../../../config/default.toml");

/// Shown in place of a secret that is set.
const SECRET_SHOWN: &str = "(set)";

/// Shown in place of whatever a backend's address holds before its host.
const PASSWORD_SHOWN: &str = "://(hidden)@";

/// Stands for the order's id in `payment.return_url`.
pub const ORDER_IN_URL: &str = "{order}";

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub listen: String,
    #[serde(with = "unset_when_empty")]
    pub operator_listen: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub public_url: Option<String>,
    pub data_dir: PathBuf,
    pub gate: BackendUrl,
    /// Never empty after [`Settings::load`].
    pub ledger: BackendUrl,
    pub roles: Vec<String>,
    #[serde(with = "secret")]
    pub admin_key: Option<SecretString>,
    pub demo: bool,
    pub drain_s: u32,
    /// 0 = one per core.
    pub edge_threads: usize,
    pub auth: AuthSettings,
    pub pass: PassSettings,
    pub limits: LimitsSettings,
    pub queue: QueueSettings,
    pub clerk: ClerkSettings,
    pub challenge: ChallengeSettings,
    pub payment: PaymentSettings,
    pub strikes: StrikesSettings,
    pub storefront: StorefrontSettings,
    pub images: ImagesSettings,
    pub webhooks: WebhooksSettings,
    pub broker: BrokerSettings,
    pub audit: AuditSettings,
    pub telemetry: TelemetrySettings,
    /// Names of ours in the environment that are no settings.
    #[serde(skip)]
    pub unknown: Vec<Warning>,
    /// How often the sweeper looks besides when its timer wakes it, if not as often as it likes. Nothing for operators: a
    /// test makes it long, so that the timer alone is at work.
    #[serde(skip)]
    pub sweeper_look: Option<Duration>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSettings {
    #[serde(with = "secret")]
    pub hs256_secret: Option<SecretString>,
    #[serde(with = "unset_when_empty")]
    pub jwks: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub issuer: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub audience: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub login_url: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PassSettings {
    #[serde(with = "secret")]
    pub secret: Option<SecretString>,
    #[serde(with = "secret")]
    pub previous_secret: Option<SecretString>,
    pub lead_s: u32,
    pub ttl_s: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsSettings {
    pub per_ip_per_s: u32,
    pub per_ip_burst: u32,
    pub per_buyer_per_s: u32,
    pub per_buyer_burst: u32,
    pub limiter_keys: usize,
    pub in_flight: usize,
    pub waiters: usize,
    pub reserve: usize,
    /// 0 = by the limit of open files; ask [`LimitsSettings::connections_with`].
    pub connections: usize,
    pub header_timeout_s: u32,
    pub body_timeout_s: u32,
    pub idle_timeout_s: u32,
    pub body_bytes: usize,
    pub header_bytes: usize,
    pub sockets: usize,
    pub sockets_per_buyer: usize,
    pub wait_s: u32,
    pub stream_life_s: u32,
    pub ping_s: u32,
    pub registrations: u64,
    pub trusted_proxies: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    pub capacity: usize,
    pub batch: usize,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClerkSettings {
    pub batch: usize,
    pub batch_ms: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeSettings {
    pub pow_cost: u32,
    pub pow_tries: u32,
    pub life_s: u32,
    pub picture_pool: usize,
    pub spent_limit: usize,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PaymentSettings {
    pub sandbox: bool,
    /// Holds [`ORDER_IN_URL`].
    #[serde(with = "unset_when_empty")]
    pub return_url: Option<String>,
    // Boxed: settings are moved through the start of the process, and these are large and mostly empty.
    pub stripe: Box<StripeSettings>,
    pub alipay: Box<AlipaySettings>,
    pub wechat: Box<WechatSettings>,
}

/// Off when neither key nor secrets are set.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StripeSettings {
    #[serde(with = "secret")]
    pub secret_key: Option<SecretString>,
    #[serde(with = "secrets")]
    pub webhook_secrets: Vec<SecretString>,
    pub url: String,
}

/// Off when nothing but `url` is set.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AlipaySettings {
    #[serde(with = "unset_when_empty")]
    pub app_id: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub seller_id: Option<String>,
    #[serde(with = "secret")]
    pub private_key: Option<SecretString>,
    #[serde(with = "unset_when_empty")]
    pub public_key: Option<String>,
    pub url: String,
}

/// Off when nothing but `url` is set.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WechatSettings {
    #[serde(with = "unset_when_empty")]
    pub mchid: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub appid: Option<String>,
    #[serde(with = "unset_when_empty")]
    pub certificate_serial: Option<String>,
    #[serde(with = "secret")]
    pub private_key: Option<SecretString>,
    #[serde(with = "secret")]
    pub api_v3_key: Option<SecretString>,
    pub platform_keys: Vec<String>,
    pub url: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StrikesSettings {
    pub limit: u32,
    pub window_days: u32,
    pub block_hours: u32,
}

impl StrikesSettings {
    /// In the words of the rules.
    #[must_use]
    pub fn policy(&self) -> rules::strike::Policy {
        let Self { limit, window_days, block_hours } = *self;
        rules::strike::Policy { limit, window_days, block_hours }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StorefrontSettings {
    pub cooldown_s: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesSettings {
    pub private_addresses: bool,
    #[serde(with = "unset_when_empty")]
    pub ca_file: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WebhooksSettings {
    pub timeout_s: u32,
    pub in_flight: usize,
    pub retry_hours: u32,
    pub keep_hours: u32,
    pub private_addresses: bool,
    #[serde(with = "unset_when_empty")]
    pub ca_file: Option<String>,
}

/// Off when no address is set.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerSettings {
    pub url: BackendUrl,
    pub exchange: String,
    /// What the routing key is; see [`crate::outbox::rabbit::Key`].
    pub key: String,
    pub types: Vec<String>,
    pub timeout_s: u32,
    pub in_flight: usize,
    #[serde(with = "unset_when_empty")]
    pub ca_file: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSettings {
    /// 0 = only when asked.
    pub every_s: u32,
    pub after_s: u32,
    pub apart_ms: u32,
    pub queued_s: u32,
    pub unpaid_s: u32,
    pub captured_s: u32,
    pub refund_s: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetrySettings {
    pub log_format: String,
    pub log_filter: String,
    #[serde(with = "unset_when_empty")]
    pub otlp_endpoint: Option<String>,
    pub trace_sample_ratio: f64,
}

const MOST_CONNECTIONS: usize = 65_536;
/// Files, sockets to receivers, the database: what needs a descriptor and is no buyer.
const DESCRIPTORS_FOR_OURSELVES: usize = 512;

impl LimitsSettings {
    /// How many connections to accept when the process may open `open_files` files.
    pub fn connections_with(&self, open_files: usize) -> usize {
        match self.connections {
            0 => open_files.saturating_sub(DESCRIPTORS_FOR_OURSELVES).clamp(1, MOST_CONNECTIONS),
            set => set,
        }
    }
}

impl Settings {
    /// The file of the SQLite ledger.
    pub fn ledger_path(&self) -> PathBuf {
        PathBuf::from(self.ledger.as_str().trim_start_matches("sqlite:"))
    }

    /// What is in force, as TOML that can be read back once the secrets are filled in; secrets show as `(set)`.
    pub fn effective_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

/// Where a backend lives. A password inside is shown to nobody but [`BackendUrl::as_str`].
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct BackendUrl(String);

impl BackendUrl {
    /// As written, password included: for connecting, not for showing.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for BackendUrl {
    fn from(url: T) -> Self {
        Self(url.into())
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
            Some((scheme, host)) => write!(f, "{scheme}{PASSWORD_SHOWN}{host}"),
            None => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for BackendUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// TOML has no "nothing"; an empty text says it, so that every name can stand in the file.
mod unset_when_empty {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        Ok(Some(String::deserialize(deserializer)?).filter(|text| !text.is_empty()))
    }

    pub fn serialize<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text.as_deref().unwrap_or_default())
    }
}

mod secret {
    use secrecy::SecretString;
    use serde::{Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretString>, D::Error> {
        Ok(super::unset_when_empty::deserialize(deserializer)?.map(SecretString::from))
    }

    pub fn serialize<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if secret.is_some() { super::SECRET_SHOWN } else { "" })
    }
}

mod secrets {
    use secrecy::SecretString;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SecretString>, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().map(SecretString::from).collect())
    }

    pub fn serialize<S: Serializer>(secrets: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(secrets.iter().map(|_| super::SECRET_SHOWN))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn defaults() -> Settings {
        Settings::load(None, std::iter::empty(), &[]).unwrap()
    }

    fn names(table: &toml::Table, above: &str, into: &mut BTreeSet<String>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) => names(inner, &format!("{above}{name}."), into),
                _ => assert!(into.insert(format!("{above}{name}"))),
            }
        }
    }

    fn names_in(text: &str) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        names(&text.parse().unwrap(), "", &mut all);
        all
    }

    #[test]
    fn the_default_file_and_the_settings_have_the_same_names() {
        assert_eq!(names_in(DEFAULT_TOML), names_in(&defaults().effective_toml().unwrap()));
    }

    #[test]
    fn what_is_in_force_by_default_is_what_the_default_file_says() {
        let mut file: toml::Table = DEFAULT_TOML.parse().unwrap();
        file.insert("ledger".into(), "sqlite:data/doorbuster.db".into());
        assert_eq!(defaults().effective_toml().unwrap().parse::<toml::Table>().unwrap(), file);
    }

    #[test]
    fn every_setting_in_the_default_file_is_explained() {
        let lines: Vec<&str> = DEFAULT_TOML.lines().collect();
        for pair in lines.windows(2) {
            let is_setting = pair[1].contains(" = ") && !pair[1].starts_with('#');
            assert!(!is_setting || pair[0].starts_with("# "), "no reason given above `{}`", pair[1]);
        }
    }

    #[test]
    fn the_defaults_are_the_ones_the_contract_names() {
        let Settings { pass, limits, queue, clerk, challenge, strikes, webhooks, .. } = defaults();
        assert_eq!((pass.lead_s, pass.ttl_s), (30, 300));
        assert_eq!((limits.per_ip_per_s, limits.per_ip_burst), (50, 100));
        assert_eq!((limits.per_buyer_per_s, limits.per_buyer_burst), (5, 10));
        assert_eq!((limits.limiter_keys, limits.in_flight, limits.waiters), (1_000_000, 4_096, 50_000));
        assert_eq!((limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s), (5, 5, 60));
        assert_eq!((limits.body_bytes, limits.header_bytes), (16_384, 16_384));
        assert_eq!((limits.sockets, limits.sockets_per_buyer), (50_000, 5));
        assert_eq!((limits.wait_s, limits.stream_life_s, limits.ping_s), (30, 3_600, 20));
        assert_eq!((queue.capacity, queue.batch, clerk.batch), (65_536, 2_048, 2_048));
        assert_eq!((strikes.limit, strikes.window_days, strikes.block_hours), (3, 30, 72));
        assert_eq!((challenge.life_s, defaults().drain_s, defaults().storefront.cooldown_s), (120, 15, 5));
        assert_eq!((webhooks.timeout_s, webhooks.in_flight, webhooks.retry_hours), (10, 10, 72));
        assert!(webhooks.keep_hours >= webhooks.retry_hours && !webhooks.private_addresses);
    }

    #[test]
    fn connections_leave_descriptors_for_the_rest_of_the_process() {
        let mut limits = defaults().limits;
        assert_eq!(limits.connections_with(1_048_576), 65_536);
        assert_eq!(limits.connections_with(1_024), 512);
        assert_eq!(limits.connections_with(100), 1);
        limits.connections = 2_000;
        assert_eq!(limits.connections_with(1_024), 2_000);
    }

    #[test]
    fn no_secret_and_no_password_is_ever_shown() {
        const PLANTED: &str = "planted-secret-planted-secret-planted";
        let keys = [
            "admin_key",
            "auth.hs256_secret",
            "pass.secret",
            "pass.previous_secret",
            "payment.stripe.secret_key",
            "payment.stripe.webhook_secrets",
            "payment.alipay.private_key",
            "payment.wechat.private_key",
            "payment.wechat.api_v3_key",
        ];
        let mut overrides: Vec<String> = keys.iter().map(|key| format!("{key}={PLANTED}")).collect();
        overrides.push(format!("ledger=postgres://shop:{PLANTED}@db/shop"));
        overrides.push(format!("gate=redis://:{PLANTED}@cache:6379"));
        overrides.push(format!("broker.url=amqp://shop:{PLANTED}@rabbit:5672/shop"));
        let settings = Settings::load(None, std::iter::empty(), &overrides).unwrap();
        let problems: Vec<String> = settings.check().unwrap_err().iter().map(ToString::to_string).collect();
        for shown in [format!("{settings:?}"), settings.effective_toml().unwrap(), problems.join("\n")] {
            assert!(!shown.contains("planted"), "{shown}");
        }
        assert!(settings.effective_toml().unwrap().contains("postgres://(hidden)@db/shop"));
        assert_eq!(settings.gate.as_str(), format!("redis://:{PLANTED}@cache:6379"));
    }
}
