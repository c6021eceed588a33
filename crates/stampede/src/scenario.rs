//! Who comes, when, and how they behave: a small TOML file. It describes and draws lots; what a person then does is
//! in `person`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::words::parse_time;

/// Most requests one volley may send at once: beyond this it is not a person but a denial of service.
pub const PARALLEL_MAX: u32 = 32;
/// Most passes one person fetches.
pub const PASSES_MAX: u32 = 8;
/// Most volleys of one person.
pub const VOLLEYS_MAX: u32 = 10_000;

/// How long a buyer bears with what does not come, where the file says nothing else.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The longest patience: nobody waits for a page, or to pay late, for longer than this.
pub const PATIENCE_MAX: Duration = Duration::from_secs(2 * 3_600);

/// A night as it is described in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A few words.
    pub title: String,
    /// What it is good for.
    #[serde(default)]
    pub about: String,
    #[serde(default)]
    pub wanted: Wanted,
    /// How long a buyer bears with a page that does not come or an order that stays queued, and how long one who pays
    /// late waits for the deadline at most.
    #[serde(default = "patience", with = "time")]
    pub patience: Duration,
    #[serde(default)]
    pub arrival: Arrival,
    #[serde(rename = "person")]
    pub mix: Vec<Kind>,
}

impl Scenario {
    /// From the opening until the last try that has a timetable is due.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let volleys = |kind: &Kind| kind.every.saturating_mul(kind.volleys.saturating_sub(1));
        let slowest = self.mix.iter().map(|kind| kind.jitter.saturating_add(volleys(kind))).max();
        self.arrival.within.saturating_add(slowest.unwrap_or_default())
    }
}

const fn patience() -> Duration {
    PATIENCE
}

/// What the buyers are after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Buyer by buyer the next offer of the sale.
    #[default]
    Spread,
    /// Everybody the first.
    First,
}

/// When they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Arrival {
    #[serde(rename = "loop")]
    pub paced: Loop,
    pub curve: Curve,
    /// All first tries are due within this time after the opening. Open loop only.
    #[serde(with = "time")]
    pub within: Duration,
    /// Pages are opened up to so long before the try.
    #[serde(with = "time")]
    pub pages_ahead: Duration,
    /// Passes are fetched up to so long before the try.
    #[serde(with = "time")]
    pub passes_ahead: Duration,
    /// Persons at a time. Closed loop only.
    pub at_once: u32,
}

impl Default for Arrival {
    fn default() -> Self {
        Self {
            paced: Loop::Open,
            curve: Curve::Spike,
            within: Duration::from_secs(10),
            pages_ahead: Duration::from_secs(10),
            passes_ahead: Duration::from_secs(10),
            at_once: 100,
        }
    }
}

/// Who decides when the next one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loop {
    /// The clock: whatever the server does, they come.
    Open,
    /// The server: a person comes when another has gone.
    Closed,
}

/// How first tries are spread over `within`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Curve {
    /// Most at the opening, then ever fewer: half of them within the first seventh of the time.
    Spike,
    /// Ever more until the end.
    Ramp,
    /// As many in each second.
    Constant,
}

/// How steeply a spike falls: the rate at its end is e^-5, less than a hundredth of that at its beginning.
const SPIKE_FALL: f64 = 5.0;

impl Curve {
    /// Where in the time, 0 to 1, the person stands who comes after `share` of the others.
    #[must_use]
    pub fn at(self, share: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        match self {
            Self::Spike => -(share * (-SPIKE_FALL).exp_m1()).ln_1p() / SPIKE_FALL,
            Self::Ramp => share.sqrt(),
            Self::Constant => share,
        }
    }
}

/// One kind of person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kind {
    pub name: String,
    /// How many there are of this kind, in relation to the others.
    pub share: f64,
    pub fires: Fires,
    /// Fingers are up to this much slower.
    #[serde(with = "time")]
    pub jitter: Duration,
    /// The first volley goes out so long before its moment.
    #[serde(with = "time")]
    pub early: Duration,
    /// How often it fires. More than once: by its own clock, deaf to what it is told to wait.
    pub volleys: u32,
    /// The time between two volleys.
    #[serde(with = "time")]
    pub every: Duration,
    /// Requests at once in each volley.
    pub parallel: u32,
    /// Different passes it takes turns with.
    pub passes: u32,
    pub quantity: u32,
    /// The share of them that clicks twice at once.
    pub double_click: f64,
    /// The share that hangs up in the middle of the first try.
    pub hang_up: f64,
    /// The share of those who hung up that comes back to look.
    pub come_back: f64,
    pub register: Register,
    pub follow: Follow,
    /// Shares of those with an order. The rest walks away.
    pub pay: f64,
    pub pay_late: f64,
    pub pay_twice: f64,
    pub cancel: f64,
    /// How long they think before they pay or cancel, at most.
    #[serde(with = "time")]
    pub decide_within: Duration,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            name: "human".to_owned(),
            share: 1.0,
            fires: Fires::Curve,
            jitter: Duration::from_millis(200),
            early: Duration::ZERO,
            volleys: 1,
            every: Duration::from_millis(100),
            parallel: 1,
            passes: 1,
            quantity: 1,
            double_click: 0.0,
            hang_up: 0.0,
            come_back: 0.5,
            register: Register::Required,
            follow: Follow::LongPoll,
            pay: 0.0,
            pay_late: 0.0,
            pay_twice: 0.0,
            cancel: 0.0,
            decide_within: Duration::from_secs(1),
        }
    }
}

/// What the first try is timed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fires {
    /// The arrival curve.
    Curve,
    /// The opening itself.
    Opening,
}

/// When a person signs up for the sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// Where the sale asks for it.
    Required,
    Always,
    /// Not even then: the shop must notice.
    Never,
}

/// How a person learns what became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    LongPoll,
    Polling,
    Websocket,
    Sse,
    /// Not at all; only the last look sees it.
    Nothing,
}

/// What a person with an order does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    WalkAway,
    Pay,
    PayLate,
    PayTwice,
    Cancel,
}

impl Kind {
    /// The ending of whoever draws `lot`, 0 to 1.
    #[must_use]
    pub fn ending(&self, lot: f64) -> Ending {
        let shares = [
            (self.pay, Ending::Pay),
            (self.pay_late, Ending::PayLate),
            (self.pay_twice, Ending::PayTwice),
            (self.cancel, Ending::Cancel),
        ];
        let mut below = 0.0;
        for (share, ending) in shares {
            below += share;
            if lot < below {
                return ending;
            }
        }
        Ending::WalkAway
    }

    fn check(&self) -> anyhow::Result<()> {
        let Self { share, volleys, parallel, passes, quantity, .. } = self;
        ensure!(!self.name.is_empty(), "`name` is empty; call the kind something, such as \"human\"");
        ensure!(share.is_finite() && *share > 0.0, "`share` is {share}; it must be above 0");
        let counts = [
            ("volleys", *volleys, VOLLEYS_MAX),
            ("parallel", *parallel, PARALLEL_MAX),
            ("passes", *passes, PASSES_MAX),
            ("quantity", *quantity, 100),
        ];
        for (name, count, max) in counts {
            ensure!((1..=max).contains(&count), "`{name}` is {count}; it must be 1 to {max}");
        }
        ensure!(*volleys == 1 || !self.every.is_zero(), "`every` is 0; several volleys need time in between");
        let shares = [
            ("double_click", self.double_click),
            ("hang_up", self.hang_up),
            ("come_back", self.come_back),
            ("pay", self.pay),
            ("pay_late", self.pay_late),
            ("pay_twice", self.pay_twice),
            ("cancel", self.cancel),
        ];
        for (name, share) in shares {
            ensure!((0.0..=1.0).contains(&share), "`{name}` is {share}; it must lie between 0 and 1");
        }
        let ends = self.pay + self.pay_late + self.pay_twice + self.cancel;
        // A hair above 1 is only how tenths are written in binary.
        ensure!(ends <= 1.0 + 1e-9, "`pay`, `pay_late`, `pay_twice` and `cancel` add up to {ends}, beyond 1");
        Ok(())
    }
}

/// What is wrong with a mix, by the field's name.
pub fn check_mix(mix: &[Kind]) -> anyhow::Result<()> {
    ensure!(!mix.is_empty(), "nobody comes: add a [[person]]");
    for (position, kind) in mix.iter().enumerate() {
        kind.check().with_context(|| format!("[[person]] number {} ({})", position + 1, kind.name))?;
    }
    Ok(())
}

/// Who of the mix draws `lot`, 0 to 1: a position in it.
#[must_use]
pub fn pick(mix: &[Kind], lot: f64) -> usize {
    let all: f64 = mix.iter().map(|kind| kind.share).sum();
    let mut below = 0.0;
    let found = mix.iter().position(|kind| {
        below += kind.share;
        lot * all < below
    });
    found.unwrap_or(mix.len().saturating_sub(1))
}

/// A scenario that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal)*) => {
        &[$(Shipped { name: $name, text: include_str!(concat!("../scenarios/", $name, ".toml")) },)*]
    };
}

pub const SHIPPED: &[Shipped] =
    shipped!["spike" "bots" "sold-out" "duplicate-clicks" "half-pay" "registration"];

/// A scenario with its name and its text.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub name: String,
    pub text: String,
    pub scenario: Scenario,
}

/// A shipped scenario by name, or a file.
pub fn load(name_or_file: &str) -> anyhow::Result<Loaded> {
    let (name, text) = match SHIPPED.iter().find(|shipped| shipped.name == name_or_file) {
        Some(shipped) => (shipped.name.to_owned(), shipped.text.to_owned()),
        None => (name_or_file.to_owned(), read(name_or_file)?),
    };
    let scenario = parse(&text).with_context(|| format!("the scenario `{name}` is not as it must be"))?;
    Ok(Loaded { name, text, scenario })
}

fn read(file: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file);
    if text.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::NotFound) {
        return text.with_context(|| format!("the scenario file `{file}` cannot be read"));
    }
    text.with_context(|| {
        let names: Vec<&str> = SHIPPED.iter().map(|shipped| shipped.name).collect();
        format!(
            "there is no scenario and no file `{file}`; shipped are {}; `stampede scenarios` describes them",
            names.join(", ")
        )
    })
}

pub fn parse(text: &str) -> anyhow::Result<Scenario> {
    let scenario: Scenario = toml::from_str(text)?;
    check_mix(&scenario.mix)?;
    ensure!(scenario.arrival.at_once > 0, "`arrival.at_once` is 0; somebody must come");
    let (patience, most) = (scenario.patience, PATIENCE_MAX.as_secs() / 60);
    ensure!(!patience.is_zero(), "`patience` is 0; a buyer must bear with an answer for a moment");
    ensure!(patience <= PATIENCE_MAX, "`patience` is {} s; it must be {most}m or less", patience.as_secs());
    Ok(scenario)
}

/// Times as texts, such as "500ms".
mod time {
    use super::{Deserialize as _, Deserializer, Duration, Serializer, parse_time};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}ms", time.as_millis()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_time(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        format!("{:#}", parse(text).expect_err("this is no scenario"))
    }

    #[test]
    fn shipped_scenarios_are_read_and_say_what_they_are() {
        for shipped in SHIPPED {
            let loaded = load(shipped.name).unwrap();
            assert!(
                !loaded.scenario.title.is_empty() && !loaded.scenario.about.is_empty(),
                "{}",
                shipped.name
            );
            let again = parse(&toml::to_string(&loaded.scenario).unwrap()).unwrap();
            assert_eq!(again.mix, loaded.scenario.mix);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_field() {
        let person = "title = \"t\"\n[[person]]\n";
        assert!(complaint("title = \"t\"\n").contains("person"));
        assert!(complaint("title = \"t\"\nperson = []\n").contains("[[person]]"));
        assert!(complaint(&format!("{person}shaer = 1\n")).contains("shaer"));
        assert!(complaint(&format!("{person}hang_up = 1.5\n")).contains("`hang_up` is 1.5"));
        assert!(complaint(&format!("{person}pay = 0.7\ncancel = 0.5\n")).contains("beyond 1"));
        assert!(complaint(&format!("{person}share = 0\n")).contains("`share`"));
        assert!(complaint(&format!("{person}parallel = 0\n")).contains("`parallel`"));
        assert!(complaint(&format!("{person}jitter = \"5h\"\n")).contains("the unit must be"));
        assert!(complaint(&format!("{person}follow = \"pigeon\"\n")).contains("pigeon"));
        assert!(complaint("title = \"t\"\npatience = \"0s\"\n[[person]]\n").contains("`patience` is 0"));
        assert!(complaint("title = \"t\"\npatience = \"121m\"\n[[person]]\n").contains("120m or less"));
        assert!(
            complaint("title = \"t\"\n[arrival]\nloop = \"sideways\"\n[[person]]\n").contains("sideways")
        );
        let missing = load("no-such-night").expect_err("it is not there").to_string();
        assert!(missing.contains("spike") && missing.contains("no-such-night"), "{missing}");
        let folder = load("/").expect_err("it is a folder").to_string();
        assert_eq!(folder, "the scenario file `/` cannot be read");
    }

    #[test]
    fn a_spike_begins_at_the_opening_and_a_ramp_ends_high() {
        let within = |curve: Curve, until: f64| {
            let people = (0..10_000).map(|number| curve.at((f64::from(number) + 0.5) / 10_000.0));
            people.filter(|at| *at < until).count()
        };
        assert!(
            (4_900..5_200).contains(&within(Curve::Spike, 1.0 / 7.0)),
            "{}",
            within(Curve::Spike, 1.0 / 7.0)
        );
        assert!((2_400..2_600).contains(&within(Curve::Ramp, 0.5)));
        assert!((4_990..5_010).contains(&within(Curve::Constant, 0.5)));
        for curve in [Curve::Spike, Curve::Ramp, Curve::Constant] {
            assert!(curve.at(0.0).abs() < 1e-9 && (curve.at(1.0) - 1.0).abs() < 1e-9, "{curve:?}");
        }
    }

    /// The text of docs/stampede.md between this line and the next fence.
    fn of_the_page(fence: &str) -> &'static str {
        let page = include_str!("../../../docs/stampede.md");
        page.split_once(fence).and_then(|(_, rest)| rest.split_once("```")).unwrap().0
    }

    #[test]
    fn the_scenario_of_the_page_is_read_and_names_every_key() {
        let text = of_the_page("```toml\n");
        let scenario = parse(text).unwrap();
        let all = toml::Value::try_from(&scenario).unwrap();
        let keys = |value: &toml::Value| value.as_table().unwrap().keys().cloned().collect::<Vec<_>>();
        for key in [keys(&all), keys(&all["arrival"]), keys(&all["person"][0])].concat() {
            assert!(text.contains(&key), "`{key}` is not in docs/stampede.md");
        }
        // What is said to be the default is.
        let plain: Kind = toml::from_str("").unwrap();
        assert_eq!((&scenario.mix[0], scenario.arrival), (&plain, Arrival::default()));
        assert_eq!((scenario.wanted, scenario.patience), (Wanted::default(), PATIENCE));
    }

    #[test]
    fn a_night_lasts_until_the_last_volley() {
        let text = "title = \"t\"\n[arrival]\nwithin = \"20m\"\n[[person]]\njitter = \"1s\"\n[[person]]\njitter = \"0s\"\n\
                    volleys = 11\nevery = \"6s\"\n";
        assert_eq!(parse(text).unwrap().lasts(), Duration::from_secs(21 * 60));
    }

    #[test]
    fn lots_fall_by_their_shares() {
        let of = |name: &str, share| Kind { name: name.into(), share, ..Kind::default() };
        let mix = [of("human", 3.0), of("bot", 1.0)];
        let bots = (0..1_000).filter(|lot| pick(&mix, f64::from(*lot) / 1_000.0) == 1).count();
        assert_eq!(bots, 250);
        let kind = Kind { pay: 0.5, cancel: 0.25, ..Kind::default() };
        assert_eq!(
            (kind.ending(0.49), kind.ending(0.6), kind.ending(0.76)),
            (Ending::Pay, Ending::Cancel, Ending::WalkAway)
        );
    }
}
