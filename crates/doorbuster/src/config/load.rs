//! Where settings come from: the built-in defaults, then a file, then the environment, then flags; later wins.
//!
//! The default file is also the schema: a name it does not hold is refused, and a value must be of the kind it
//! shows. An unknown name in the environment is only a warning: others write there too, Kubernetes for every service.
//! Whether values make sense together is not asked here but in `check`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::config::{Config, File, FileFormat, Map, Source, Value, ValueKind};

use super::{DEFAULT_TOML, PASSWORD_SHOWN, Problem, SECRET_SHOWN, Settings, Warning};

/// Why the settings could not be read. Each says where, what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the settings file {} cannot be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{0}")]
    Syntax(String),
    /// Names and values that do not fit, all of them, by name.
    #[error("{}", sentences(.0))]
    Misfits(Vec<Misfit>),
    #[error("the flag `{0}` is not of the form name=value, for example limits.in_flight=8192")]
    Flag(String),
    #[error("the settings cannot be used: {0}")]
    Other(String),
}

/// A name or a value that does not fit: what was meant is not known, and the default would be a guess.
#[derive(Debug, thiserror::Error)]
pub enum Misfit {
    #[error("unknown setting `{key}` in {origin}{}", hint(nearest.as_deref()))]
    Unknown { key: String, origin: String, nearest: Option<String> },
    #[error("`{key}` in {origin} must be {expected}")]
    Kind { key: String, origin: String, expected: &'static str },
    #[error(
        "`{key}` in {origin} is what `config print` shows in place of a secret. Put the secret itself there"
    )]
    Placeholder { key: String, origin: String },
}

impl Misfit {
    /// The name as it was given.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Unknown { key, .. } | Self::Kind { key, .. } | Self::Placeholder { key, .. } => key,
        }
    }
}

fn sentences(misfits: &[Misfit]) -> String {
    misfits.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// All that is wrong, and what was hardly meant.
#[derive(Debug)]
pub struct Wrong {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Warning>,
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
        let (settings, misfits) = Self::read(file, env, overrides)?;
        if misfits.is_empty() { Ok(settings) } else { Err(ConfigError::Misfits(misfits)) }
    }

    /// The same, and all that is wrong with it at once: what does not fit, and what makes no sense together.
    pub fn load_checked(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &[String],
    ) -> Result<(Self, Vec<Warning>), Wrong> {
        let unreadable = |error: ConfigError| Wrong { problems: vec![problem(&error)], warnings: Vec::new() };
        let (settings, misfits) = Self::read(file, env, overrides).map_err(unreadable)?;
        let checked = settings.check();
        if misfits.is_empty() {
            let wrong = |problems| Wrong { problems, warnings: settings.unknown.clone() };
            return checked.map_err(wrong).map(|warnings| (settings, warnings));
        }
        let mut problems: Vec<Problem> = misfits.iter().map(problem).collect();
        // A value that does not fit was replaced by the default: what that lacks is nobody's mistake.
        let replaced = |misfit: &&Misfit| !matches!(misfit, Misfit::Unknown { .. });
        let is_own = |problem: &Problem| {
            !misfits.iter().filter(replaced).any(|misfit| is_within(misfit.key(), problem.key))
        };
        problems.extend(checked.err().into_iter().flatten().filter(is_own));
        Err(Wrong { problems, warnings: settings.unknown })
    }

    /// The settings with defaults in place of what does not fit, and what that is.
    fn read(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &[String],
    ) -> Result<(Self, Vec<Misfit>), ConfigError> {
        let defaults = parse(Config::builder().add_source(default_source()))?;
        let mut known = Vec::new();
        names(&defaults, "", &mut known);
        // Of two names as near to a slip, always the same one is suggested.
        known.sort_unstable();
        let mut builder = Config::builder().add_source(default_source());
        if let Some(path) = file {
            std::fs::metadata(path)
                .map_err(|e| ConfigError::Unreadable { path: path.into(), reason: e.to_string() })?;
            builder = builder.add_source(File::from(path).format(FileFormat::Toml));
        }
        let (env, unknown) = from_env(env, &known);
        builder = builder.add_source(env).add_source(from_flags(overrides)?);
        let mut all = parse(builder)?;
        let mut misfits = Vec::new();
        conform(&mut all, &defaults, "", &known, &mut misfits);
        misfits.sort_by(|a, b| a.key().cmp(b.key()));
        let read: Result<Self, _> = Value::from(ValueKind::Table(all)).try_deserialize();
        let mut settings = read.map_err(|e| ConfigError::Other(e.to_string()))?;
        settings.unknown = unknown;
        settings.fill_in_ledger();
        Ok((settings, misfits))
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
    let config = builder.build().map_err(|e| ConfigError::Syntax(syntax(&e.to_string())))?;
    config.cache.into_table().map_err(|e| ConfigError::Syntax(e.to_string()))
}

/// The reader's words, and what most often lies behind them.
fn syntax(words: &str) -> String {
    format!("{}\nTexts need quotes, for example: listen = \"127.0.0.1:8080\"", words.trim_end())
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

/// Takes out names and kinds that the defaults do not show, and reads texts as the kind they should be.
fn conform(level: &mut Table, defaults: &Table, above: &str, known: &[String], misfits: &mut Vec<Misfit>) {
    level.retain(|name, value| {
        let key = format!("{above}{name}");
        let Some(default) = defaults.get(name) else {
            unknown(&key, value, known, misfits);
            return false;
        };
        if let (ValueKind::Table(inner), ValueKind::Table(defaults)) = (&mut value.kind, &default.kind) {
            conform(inner, defaults, &format!("{key}."), known, misfits);
            return true;
        }
        let origin = origin_of(value);
        let given = std::mem::take(&mut value.kind);
        let misfit = if is_placeholder(&given) {
            Misfit::Placeholder { key, origin }
        } else {
            match as_kind_of(&default.kind, given) {
                Ok(kind) => {
                    value.kind = kind;
                    return true;
                }
                Err(expected) => Misfit::Kind { key, origin, expected },
            }
        };
        misfits.push(misfit);
        value.kind = default.kind.clone();
        true
    });
}

/// Whether a value is what `config print` shows in place of a secret or a password.
fn is_placeholder(given: &ValueKind) -> bool {
    match given {
        ValueKind::String(text) => text == SECRET_SHOWN || text.contains(PASSWORD_SHOWN),
        ValueKind::Array(list) => list.iter().any(|entry| is_placeholder(&entry.kind)),
        _ => false,
    }
}

fn origin_of(value: &Value) -> String {
    value.origin().unwrap_or("the settings").to_owned()
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

/// An unknown section is named by the settings in it, which is what its author typed.
fn unknown(key: &str, value: &Value, known: &[String], misfits: &mut Vec<Misfit>) {
    match &value.kind {
        ValueKind::Table(inner) if !inner.is_empty() => {
            inner.iter().for_each(|(name, value)| unknown(&format!("{key}.{name}"), value, known, misfits));
        }
        _ => misfits.push(Misfit::Unknown {
            key: key.to_owned(),
            origin: origin_of(value),
            nearest: nearest(key, known),
        }),
    }
}

fn hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(known) => format!("; did you mean `{known}`?"),
        None => ". `doorbuster config default` prints all names".to_owned(),
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

fn problem(error: &impl ToString) -> Problem {
    Problem { key: "config", sentence: error.to_string() }
}

/// Whether `key` is `section`, or a setting in it.
fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
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
        assert!(error(None, &[], &["zebra=1"]).contains("`doorbuster config default` prints all names"));
        let in_file = error(Some("[limit]\nwaiters = 1\n"), &[], &[]);
        assert!(in_file.contains("`limit.waiters`") && in_file.contains(".toml"), "{in_file}");
        assert!(in_file.ends_with("did you mean `limits.waiters`?"), "{in_file}");
    }

    #[test]
    fn all_that_does_not_fit_is_said_at_once_and_in_the_same_order() {
        let file = "zebra = 1\ndrain_s = \"soon\"\n[limit]\nwaiters = 1\nreserve = 2\n[limits]\nin_flight = \"many\"\n";
        let written = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(written.path(), file).unwrap();
        for _ in 0..8 {
            let wrong =
                Settings::load_checked(Some(written.path()), std::iter::empty(), &["pass.ttl_s=0".into()]);
            let said: Vec<String> = wrong.unwrap_err().problems.iter().map(ToString::to_string).collect();
            let names = ["`drain_s`", "`limit.reserve`", "`limit.waiters`", "`limits.in_flight`", "`zebra`"];
            for (sentence, name) in said.iter().zip(names) {
                assert!(sentence.starts_with("config: ") && sentence.contains(name), "{name}: {sentence}");
            }
            let rest: Vec<_> =
                said[names.len()..].iter().map(|said| said.split(':').next().unwrap()).collect();
            assert_eq!(
                rest,
                ["admin_key", "pass.secret", "auth", "pass.ttl_s"],
                "and what makes no sense: {said:?}"
            );
        }
        let together = error(Some(file), &[], &[]);
        assert_eq!(together.lines().count(), 5, "{together}");
    }

    #[test]
    fn what_a_misfit_leaves_unset_is_not_said_to_be_missing() {
        let flags = ["admin_key=(set)".to_owned(), "auth.hs256_secret=(set)".to_owned()];
        let wrong = Settings::load_checked(None, std::iter::empty(), &flags).unwrap_err();
        let said: Vec<String> = wrong.problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("`admin_key`") && said[1].contains("`auth.hs256_secret`"), "{said:?}");
        assert!(said[2].starts_with("pass.secret: is missing"), "{said:?}");
    }

    #[test]
    fn what_config_print_shows_in_place_of_secrets_is_no_secret() {
        let secrets = [
            "admin_key=0123456789abcdef0123456789abcdef",
            "payment.stripe.webhook_secrets=whsec_1,whsec_2",
            "broker.url=amqp://shop:word@rabbit:5672/shop",
        ];
        let printed = load(None, &[], &secrets).unwrap().effective_toml().unwrap();
        let said = error(Some(&printed), &[], &[]);
        for name in ["`admin_key`", "`payment.stripe.webhook_secrets`", "`broker.url`"] {
            assert!(
                said.lines().any(|line| line.contains(name) && line.contains("config print")),
                "{name}: {said}"
            );
        }
        assert_eq!(said.lines().count(), secrets.len(), "{said}");
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
        let bare = error(Some("listen = 127.0.0.1:8080\n"), &[], &[]);
        assert!(bare.contains("Texts need quotes"), "{bare}");
    }

    #[test]
    fn a_flag_without_a_value_is_explained() {
        assert!(error(None, &[], &["limits.in_flight"]).contains("name=value"));
    }
}
