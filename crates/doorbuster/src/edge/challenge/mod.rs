//! What proves a human or costs a bot. Owns challenges from issue to the one time they are accepted; knows
//! nothing of requests or passes. A challenge is sealed to one buyer and one offer and carries all it needs,
//! so nothing is stored until somebody answers.

use std::io;
use std::sync::Arc;

use anyhow::ensure;
use aws_lc_rs::hmac;
use rules::sale::ChallengeKind;
use rules::time::UnixMs;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::ChallengeSettings;

mod picture;

mod pow;

mod spent;

#[cfg(test)]
mod tests;

use picture::Pictures;
use pow::Pow;
use spent::Spent;

/// The largest solution that is looked at, in bytes of JSON. A proof of work has about 700.
pub const MAX_SOLUTION_BYTES: usize = 4 * 1024;

/// Random bytes in the keys of each start.
const START_BYTES: usize = 32;

/// A challenge as the buyer sees it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Challenge {
    None,
    /// An ALTCHA challenge (proof of work, version 2): `parameters` and `signature`.
    Pow(altcha::Challenge),
    Picture {
        /// Goes back with the answer. The answer is inside, encrypted.
        token: String,
        /// A PNG as a `data:` URL.
        image: Arc<str>,
        expires_at: UnixMs,
    },
}

/// Why there is no challenge, or why its solution opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChallengeRefusal {
    #[error("a solution is required")]
    Missing,
    #[error("this is no solution of a challenge of ours")]
    Malformed,
    /// A picture's token that does not open looks the same when it is forged.
    #[error("the challenge was given to another buyer or for another offer")]
    NotYours,
    #[error("the challenge has expired")]
    Expired,
    #[error("the answer is wrong")]
    Wrong,
    #[error("the challenge was answered before")]
    Spent,
    /// Nothing happened; the same request may succeed in a moment.
    #[error("no challenge can be handled at the moment")]
    Busy,
}

/// Issues challenges and accepts each solution once.
#[derive(Debug)]
pub struct Challenges {
    clock: Clock,
    life_s: u32,
    pow: Pow,
    pictures: Pictures,
    spent: Spent,
}

impl Challenges {
    /// What was answered is remembered by this process alone. So its keys are its own: with those of an earlier start, or of
    /// another node, a solution could open a second door here.
    pub fn new(settings: &ChallengeSettings, secret: &[u8], clock: Clock) -> anyhow::Result<Self> {
        ensure!(!secret.is_empty(), "the secret of challenges is empty");
        let start: [u8; START_BYTES] = rand::random();
        let root = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &start);
        let root = hmac::Key::new(hmac::HMAC_SHA256, root.as_ref());
        Ok(Self {
            life_s: settings.life_s,
            pow: Pow::new(settings.pow_cost, settings.pow_tries, &root),
            pictures: Pictures::new(settings.picture_pool, &root)?,
            spent: Spent::new(settings.spent_limit, clock.clone()),
            clock,
        })
    }

    pub fn issue(
        &self,
        kind: ChallengeKind,
        buyer: &str,
        offer: &str,
    ) -> Result<Challenge, ChallengeRefusal> {
        let bearer = Bearer { buyer, offer };
        let expires_at = self.clock.now().plus_s(self.life_s);
        match kind {
            ChallengeKind::None => Ok(Challenge::None),
            ChallengeKind::Pow => self.pow.issue(bearer, expires_at).map(Challenge::Pow),
            ChallengeKind::Picture => {
                let (token, image) = self.pictures.issue(bearer, expires_at)?;
                Ok(Challenge::Picture { token, image, expires_at })
            }
        }
    }

    /// Accepts a right solution exactly once, whatever comes at the same time. A wrong answer to a picture
    /// uses up one of its tries; a wrong proof of work costs its sender more than us and changes nothing.
    pub fn check(
        &self,
        kind: ChallengeKind,
        buyer: &str,
        offer: &str,
        solution: Option<&Value>,
    ) -> Result<(), ChallengeRefusal> {
        let bearer = Bearer { buyer, offer };
        let checked = match kind {
            ChallengeKind::None => return Ok(()),
            ChallengeKind::Pow => self.pow.check(bearer, bounded(solution)?, self.clock.now())?,
            ChallengeKind::Picture => self.pictures.check(bearer, bounded(solution)?)?,
        };
        self.spent.settle(checked)
    }

    /// What the picture of this token shows, for tests: nobody else can read one without eyes.
    #[must_use]
    pub fn answer_of(&self, buyer: &str, offer: &str, token: &str) -> Option<String> {
        self.pictures.answer_of(Bearer { buyer, offer }, token)
    }

    /// Draws pictures until `shutdown`, so that none is drawn while a buyer waits.
    pub async fn keep_pictures_ready(&self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.pictures.keep_ready()).await;
    }
}

fn bounded(solution: Option<&Value>) -> Result<&Value, ChallengeRefusal> {
    let solution = solution.filter(|value| !value.is_null()).ok_or(ChallengeRefusal::Missing)?;
    serde_json::to_writer(Room(MAX_SOLUTION_BYTES), solution).map_err(|_| ChallengeRefusal::Malformed)?;
    Ok(solution)
}

/// Measures what is written into it and stops the writer when it is too much.
struct Room(usize);

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::WriteZero)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whom a challenge is sealed to.
#[derive(Clone, Copy)]
struct Bearer<'a> {
    buyer: &'a str,
    offer: &'a str,
}

impl Bearer<'_> {
    /// The length in front keeps ("ab", "c") and ("a", "bc") apart.
    fn seal_input(self) -> Vec<u8> {
        let length = u64::try_from(self.buyer.len()).unwrap_or(u64::MAX).to_be_bytes();
        [&length, self.buyer.as_bytes(), self.offer.as_bytes()].concat()
    }
}

/// A solution whose challenge is ours, of this bearer and in time.
#[derive(Clone, Copy, Debug)]
struct Checked {
    challenge: ChallengeId,
    right: bool,
}

/// Names one challenge. The expiry stands first so that ids sort by the time they may be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChallengeId {
    expires_at: UnixMs,
    random: u128,
}

/// One secret, several uses: each gets its own key.
fn derive_key(root: &hmac::Key, purpose: &str) -> hmac::Tag {
    hmac::sign(root, purpose.as_bytes())
}
