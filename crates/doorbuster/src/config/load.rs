//! Where settings come from: the built-in defaults, then a file, then the environment, then flags; later wins.
//!
//! The default file is also the schema: a name it does not hold is refused, and a value must be of the kind it
//! shows. An unknown name in the environment is only a warning: others write there too, Kubernetes for every service.
//! Whether values make sense together is not asked here but in `check`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::config::{Config, File, FileFormat, Map, Source, Value, ValueKind};

use super::{DEFAULT_TOML, Settings, Warning};

/// Why the settings could not be read. Each says where, what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the settings file {} cannot be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{0}")]
    Syntax(String),
    #[error("unknown setting `{key}` in {origin}{}", hint(nearest.as_deref()))]
    Unknown { key: String, origin: String, nearest: Option<String> },
    #[error("`{key}` in {origin} must be {expected}")]
    Kind { key: String, origin: String, expected: &'static str },
    #[error("the flag `{0}` is not of the form name=value, for example limits.in_flight=8192")]
    Flag(String),
    #[error("the settings cannot be used: {0}")]
    Other(String),
}

const ENV_PREFIX: &str = "DOORBUSTER_";

/// Variables of ours that are options of the command line and not settings.
const ENV_OF_THE_COMMAND_LINE: &[&str] = &["DOORBUSTER_CONFIG", "DOORBUSTER_SERVER", crate::crash::VARIABLE];

impl Settings {
    /// Reads the settings from `file`, `env` and `overrides` (`name=value`) and from nowhere else.
    ///
    /// A result is complete and well-formed, not yet sensible: ask [`Settings::check`] before opening a port.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &[String],
    ) -> Result<Self, ConfigError> {
        let defaults = parse(Config::builder().add_source(default_source()))?;
        let mut known = Vec::new();
        names(&defaults, "", &mut known);
        let mut builder = Config::builder().add_source(default_source());
        if let Some(path) = file {
            std::fs::metadata(path)
                .map_err(|e| ConfigError::Unreadable { path: path.into(), reason: e.to_string() })?;
            builder = builder.add_source(File::from(path).format(FileFormat::Toml));
        }
        let (env, unknown) = from_env(env, &known);
        builder = builder.add_source(env).add_source(from_flags(overrides)?);
        let mut all = parse(builder)?;
        conform(&mut all, &defaults, "", &known)?;
        let read: Result<Self, _> = Value::from(ValueKind::Table(all)).try_deserialize();
        let mut settings = read.map_err(|e| ConfigError::Other(e.to_string()))?;
        settings.unknown = unknown;
        settings.fill_in_ledger();
        Ok(settings)
    }

    fn fill_in_ledger(&mut self) {
        if self.ledger.as_str().is_empty() {
            self.ledger = format!("sqlite:{}", self.data_dir.join("doorbuster.db").display()).into();
        }
    }
}

fn default_source() -> impl Source + Send + Sync + 'static {
    File::from_str(DEFAULT_TOML, FileFormat::Toml)
}

fn parse(builder: ::config::ConfigBuilder<::config::builder::DefaultState>) -> Result<Table, ConfigError> {
    let config = builder.build().map_err(|e| ConfigError::Syntax(e.to_string()))?;
    config.cache.into_table().map_err(|e| ConfigError::Syntax(e.to_string()))
}

type Table = Map<String, Value>;

/// Texts by dotted name, each with the place it came from.
#[derive(Clone, Debug, Default)]
struct Texts(BTreeMap<String, Value>);

impl Source for Texts {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Table, ::config::ConfigError> {
        Ok(self.0.clone().into_iter().collect())
    }
}

/// What the environment sets, and a warning for each name of ours in it that is no setting.
fn from_env(env: impl Iterator<Item = (String, String)>, known: &[String]) -> (Texts, Vec<Warning>) {
    let ours = env.filter(|(name, _)| !ENV_OF_THE_COMMAND_LINE.contains(&name.as_str()));
    let (mut texts, mut unknown) = (Texts::default(), Vec::new());
    for (name, text) in ours {
        let Some(key) = name.strip_prefix(ENV_PREFIX) else { continue };
        let key = key.to_lowercase().replace("__", ".");
        if known.contains(&key) {
            let origin = format!("the environment variable {name}");
            texts.0.insert(key, Value::new(Some(&origin), ValueKind::String(text)));
        } else {
            let nearest = nearest(&key, known).map(|known| variable(&known));
            let sentence = format!("{name} sets nothing{}", hint(nearest.as_deref()));
            unknown.push(Warning { key: "environment", sentence });
        }
    }
    unknown.sort_by(|a, b| a.sentence.cmp(&b.sentence));
    (texts, unknown)
}

/// How the environment calls a setting.
fn variable(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.replace('.', "__").to_uppercase())
}

fn from_flags(flags: &[String]) -> Result<Texts, ConfigError> {
    let texts = flags.iter().map(|flag| {
        // The part before "=" only: what follows may be a secret.
        let shown = flag.split('=').next().unwrap_or_default();
        let (key, text) = flag.split_once('=').ok_or_else(|| ConfigError::Flag(shown.to_owned()))?;
        let origin = format!("the flag {key}");
        Ok((key.trim().to_owned(), Value::new(Some(&origin), ValueKind::String(text.to_owned()))))
    });
    Ok(Texts(texts.collect::<Result<_, _>>()?))
}

/// Refuses names and kinds that the defaults do not show, and reads texts as the kind they should be.
fn conform(level: &mut Table, defaults: &Table, above: &str, known: &[String]) -> Result<(), ConfigError> {
    for (name, value) in level {
        let key = format!("{above}{name}");
        let origin = value.origin().unwrap_or("the settings").to_owned();
        let Some(default) = defaults.get(name) else {
            return Err(unknown(first_leaf(&key, value), origin_of_leaf(value).unwrap_or(origin), known));
        };
        if let (ValueKind::Table(inner), ValueKind::Table(defaults)) = (&mut value.kind, &default.kind) {
            conform(inner, defaults, &format!("{key}."), known)?;
            continue;
        }
        let given = std::mem::take(&mut value.kind);
        let kind = as_kind_of(&default.kind, given);
        value.kind = kind.map_err(|expected| ConfigError::Kind { key, origin, expected })?;
    }
    Ok(())
}

/// `given`, read as the kind of `default`; else what would have been right.
fn as_kind_of(default: &ValueKind, given: ValueKind) -> Result<ValueKind, &'static str> {
    const BOOLEAN: &str = "true or false";
    const INTEGER: &str = "a whole number of at least 0";
    const NUMBER: &str = "a number";
    const TEXT: &str = "a text in quotes";
    const LIST: &str = "a list of texts";
    match (default, given) {
        (ValueKind::Boolean(_), ValueKind::String(text)) => {
            text.parse().map(ValueKind::Boolean).map_err(|_| BOOLEAN)
        }
        (ValueKind::Boolean(_), given @ ValueKind::Boolean(_)) => Ok(given),
        (ValueKind::Boolean(_), _) => Err(BOOLEAN),
        (ValueKind::Float(_), ValueKind::String(text)) => {
            text.parse().map(ValueKind::Float).map_err(|_| NUMBER)
        }
        (ValueKind::Float(_), given @ (ValueKind::Float(_) | ValueKind::I64(_))) => Ok(given),
        (ValueKind::Float(_), _) => Err(NUMBER),
        (ValueKind::String(_), given @ ValueKind::String(_)) => Ok(given),
        (ValueKind::String(_), _) => Err(TEXT),
        (ValueKind::Array(_), ValueKind::String(text)) => Ok(split_list(&text)),
        (ValueKind::Array(_), ValueKind::Array(list)) if list.iter().all(is_text) => {
            Ok(ValueKind::Array(list))
        }
        (ValueKind::Array(_), _) => Err(LIST),
        (ValueKind::Table(_), _) => Err("a section with settings of its own"),
        // What remains in the default file are whole numbers. The narrowest field is 32 bits wide.
        (_, ValueKind::String(text)) => whole_number(text.parse().ok()).ok_or(INTEGER),
        (_, ValueKind::I64(number)) => whole_number(Some(number)).ok_or(INTEGER),
        (_, _) => Err(INTEGER),
    }
}

fn whole_number(number: Option<i64>) -> Option<ValueKind> {
    number.filter(|n| u32::try_from(*n).is_ok()).map(ValueKind::I64)
}

fn is_text(value: &Value) -> bool {
    matches!(value.kind, ValueKind::String(_))
}

fn split_list(text: &str) -> ValueKind {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    ValueKind::Array(entries.map(Value::from).collect())
}

fn unknown(key: String, origin: String, known: &[String]) -> ConfigError {
    let nearest = nearest(&key, known);
    ConfigError::Unknown { key, origin, nearest }
}

fn hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(known) => format!("; did you mean `{known}`?"),
        None => ". See config/default.toml for all names".to_owned(),
    }
}

fn nearest(key: &str, known: &[String]) -> Option<String> {
    /// Below this similarity a suggestion confuses more than it helps.
    const CLOSE: f64 = 0.8;
    let by_closeness = known.iter().map(|name| (closeness(name, key), name));
    let nearest = by_closeness.filter(|(close, _)| *close >= CLOSE).max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map(|(_, name)| name.clone())
}

/// A right name in the wrong section is as close as a slip of the finger.
fn closeness(known: &str, key: &str) -> f64 {
    let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
    let spelled = strsim::normalized_damerau_levenshtein(known, key);
    if last(known) == last(key) { spelled.max(0.9) } else { spelled }
}

fn names(level: &Table, above: &str, into: &mut Vec<String>) {
    for (name, value) in level {
        let key = format!("{above}{name}");
        match &value.kind {
            ValueKind::Table(inner) => names(inner, &format!("{key}."), into),
            _ => into.push(key),
        }
    }
}

/// An unknown section is named by the first setting in it, which is what its author typed.
fn first_leaf(key: &str, value: &Value) -> String {
    match &value.kind {
        ValueKind::Table(inner) => match inner.iter().min_by(|a, b| a.0.cmp(b.0)) {
            Some((name, value)) => first_leaf(&format!("{key}.{name}"), value),
            None => key.to_owned(),
        },
        _ => key.to_owned(),
    }
}

fn origin_of_leaf(value: &Value) -> Option<String> {
    match &value.kind {
        ValueKind::Table(inner) => {
            inner.iter().min_by(|a, b| a.0.cmp(b.0)).and_then(|(_, value)| origin_of_leaf(value))
        }
        _ => value.origin().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn load(file: Option<&str>, env: &[(&str, &str)], flags: &[&str]) -> Result<Settings, ConfigError> {
        let mut written = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        written.write_all(file.unwrap_or_default().as_bytes()).unwrap();
        let env = env.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        Settings::load(file.map(|_| written.path()), env, &flags)
    }

    fn error(file: Option<&str>, env: &[(&str, &str)], flags: &[&str]) -> String {
        load(file, env, flags).unwrap_err().to_string()
    }

    #[test]
    fn flags_beat_the_environment_beats_the_file_beats_the_defaults() {
        let file = Some("drain_s = 1\n[limits]\nin_flight = 1\nwaiters = 1\n");
        let env =
            [("DOORBUSTER_LIMITS__IN_FLIGHT", "2"), ("DOORBUSTER_LIMITS__WAITERS", "2"), ("PATH", "/bin")];
        let settings = load(file, &env, &["limits.waiters=3"]).unwrap();
        assert_eq!((settings.drain_s, settings.limits.in_flight, settings.limits.waiters), (1, 2, 3));
        assert_eq!(settings.limits.reserve, 512);
    }

    #[test]
    fn texts_from_outside_are_read_as_the_kind_they_should_be() {
        let env = [
            ("DOORBUSTER_DEMO", "true"),
            ("DOORBUSTER_ADMIN_KEY", "12345678901234567890e123456789012345"),
            ("DOORBUSTER_TELEMETRY__TRACE_SAMPLE_RATIO", "1"),
            ("DOORBUSTER_LIMITS__TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.7"),
            ("DOORBUSTER_AUTH__ISSUER", ""),
            ("DOORBUSTER_CONFIG", "/etc/doorbuster.toml"),
        ];
        let settings = load(None, &env, &["auth.audience=a=b"]).unwrap();
        assert!(settings.demo);
        let key = secrecy::ExposeSecret::expose_secret(settings.admin_key.as_ref().unwrap()).to_owned();
        assert_eq!(key, "12345678901234567890e123456789012345", "a key of digits is not a number");
        assert_eq!(settings.telemetry.trace_sample_ratio, 1.0);
        assert_eq!(settings.limits.trusted_proxies, ["10.0.0.0/8", "192.0.2.7"]);
        assert_eq!(settings.auth.issuer, None);
        assert_eq!(settings.auth.audience.as_deref(), Some("a=b"));
    }

    #[test]
    fn the_ledger_stands_in_the_data_folder_unless_told_otherwise() {
        let settings = load(None, &[], &["data_dir=/srv/sale"]).unwrap();
        assert_eq!(settings.ledger.as_str(), "sqlite:/srv/sale/doorbuster.db");
        let settings = load(None, &[], &["ledger=sqlite:/elsewhere.db"]).unwrap();
        assert_eq!(settings.ledger.as_str(), "sqlite:/elsewhere.db");
    }

    #[test]
    fn an_unknown_name_is_refused_with_its_place_and_the_nearest_name() {
        assert_eq!(
            error(None, &[], &["limits.inflight=1"]),
            "unknown setting `limits.inflight` in the flag limits.inflight; did you mean `limits.in_flight`?"
        );
        assert!(error(None, &[], &["lissten=1"]).ends_with("did you mean `listen`?"));
        assert!(error(None, &[], &["in_flight=1"]).ends_with("in_flight`?"), "right name, wrong section");
        assert!(error(None, &[], &["zebra=1"]).contains("See config/default.toml"));
        let in_file = error(Some("[limit]\nwaiters = 1\n"), &[], &[]);
        assert!(in_file.contains("`limit.waiters`") && in_file.contains(".toml"), "{in_file}");
        assert!(in_file.ends_with("did you mean `limits.waiters`?"), "{in_file}");
    }

    #[test]
    fn an_unknown_name_in_the_environment_is_a_warning_with_the_nearest_name() {
        let env = [
            ("DOORBUSTER_LIMITS__INFLIGHT", "hunter2"),
            ("DOORBUSTER_PORT", "tcp://10.0.0.1:8080"),
            ("DOORBUSTER_SERVICE_HOST", "10.0.0.1"),
            ("DOORBUSTER_LISTEN__ADDRESS", "here"),
            ("DOORBUSTER_DRAIN_S", "7"),
        ];
        let mut settings = load(None, &env, &[]).unwrap();
        assert_eq!((settings.drain_s, settings.limits.in_flight), (7, 4_096));
        let said: Vec<String> = settings.unknown.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert_eq!(
            said[0],
            "environment: DOORBUSTER_LIMITS__INFLIGHT sets nothing; did you mean `DOORBUSTER_LIMITS__IN_FLIGHT`?"
        );
        assert!(said[3].starts_with("environment: DOORBUSTER_SERVICE_HOST sets nothing"), "{said:?}");
        for secret in [&mut settings.admin_key, &mut settings.pass.secret, &mut settings.auth.hs256_secret] {
            *secret = Some("0123456789abcdef0123456789abcdef".into());
        }
        let warned = settings.check().unwrap();
        assert!(settings.unknown.iter().all(|unknown| warned.contains(unknown)), "{warned:?}");
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_with_its_place_and_not_repeated() {
        let cases: &[(&str, &str)] = &[
            (
                "limits.in_flight=many",
                "`limits.in_flight` in the flag limits.in_flight must be a whole number",
            ),
            ("limits.in_flight=-1", "at least 0"),
            ("limits.in_flight=1.5", "whole number"),
            ("limits.in_flight=99999999999", "whole number"),
            ("demo=perhaps", "true or false"),
            ("telemetry.trace_sample_ratio=often", "a number"),
            ("limits=1", "section"),
        ];
        for (flag, expected) in cases {
            let said = error(None, &[], &[flag]);
            assert!(said.contains(expected), "{flag}: {said}");
        }
        assert!(error(Some("limits.in_flight = 4096.5"), &[], &[]).contains("whole number"));
        assert!(error(Some("admin_key = 123456"), &[], &[]).contains("a text in quotes"));
        assert!(error(Some("roles = [1]"), &[], &[]).contains("a list of texts"));
        assert!(!error(Some("admin_key = 123456"), &[], &[]).contains("123456"));
        assert!(!error(None, &[("DOORBUSTER_DEMO", "hunter2")], &[]).contains("hunter2"));
    }

    #[test]
    fn a_file_that_is_missing_or_broken_is_named() {
        let missing = Settings::load(Some(Path::new("/nowhere/sale.toml")), std::iter::empty(), &[]);
        assert!(missing.unwrap_err().to_string().contains("/nowhere/sale.toml cannot be read"));
        let broken = error(Some("drain_s = 1\nlisten = \n"), &[], &[]);
        assert!(broken.contains("line 2") && broken.contains(".toml"), "{broken}");
    }

    #[test]
    fn a_flag_without_a_value_is_explained() {
        assert!(error(None, &[], &["limits.in_flight"]).contains("name=value"));
    }
}
