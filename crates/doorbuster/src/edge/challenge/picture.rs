//! Pictures of letters. Owns the pool of pictures drawn ahead and the tokens that carry their answers,
//! encrypted. The drawing is the `captcha` crate's.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use captcha::Captcha;
use captcha::filters::{Dots, Noise, Wave};
use parking_lot::Mutex;
use rules::time::UnixMs;
use serde::Deserialize;
use serde_json::Value;
use subtle::ConstantTimeEq;
use tokio::sync::Notify;

use super::{Bearer, ChallengeId, ChallengeRefusal, Checked, derive_key};

/// The letters of a picture: those people do not take for one another, without the two widest, so that any
/// five fit. Case does not count in answers.
const LETTERS: [char; 22] = [
    'A', 'C', 'D', 'E', 'F', 'G', 'H', 'J', 'K', 'N', 'P', 'R', 'T', 'U', 'V', 'X', 'Y', '3', '4', '6', '7',
    '9',
];

/// Letters per picture: 22^5 answers, and three wrong ones use a picture up.
const LETTERS_PER_PICTURE: u32 = 5;

/// Width and height of a picture, in pixels.
const SIZE_PX: (u32, u32) = (240, 100);

/// How long the worker rests after a picture failed.
const REST: Duration = Duration::from_secs(1);

/// Bytes of a token's secret part before the answer: the random id and the expiry.
const ID_BYTES: usize = 16;
const EXPIRY_BYTES: usize = 8;

pub(super) struct Pictures {
    pool: Mutex<VecDeque<Picture>>,
    capacity: usize,
    taken: Notify,
    key: RandomizedNonceKey,
}

struct Picture {
    answer: String,
    image: Arc<str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Solution {
    token: String,
    answer: String,
}

impl Pictures {
    pub fn new(capacity: usize, root: &hmac::Key) -> anyhow::Result<Self> {
        let key = RandomizedNonceKey::new(&AES_256_GCM, derive_key(root, "challenge/picture/1").as_ref())
            .map_err(|_| anyhow::anyhow!("no key for the pictures' tokens"))?;
        Ok(Self { pool: Mutex::default(), capacity, taken: Notify::new(), key })
    }

    /// Hands out a picture once; an empty pool is "busy", never a picture drawn while the buyer waits.
    pub fn issue(
        &self,
        bearer: Bearer<'_>,
        expires_at: UnixMs,
    ) -> Result<(String, Arc<str>), ChallengeRefusal> {
        let picture = self.pool.lock().pop_front().ok_or(ChallengeRefusal::Busy)?;
        self.taken.notify_one();
        let id = ChallengeId { expires_at, random: rand::random() };
        let token = self.seal(bearer, id, &picture.answer).ok_or(ChallengeRefusal::Busy)?;
        Ok((token, picture.image))
    }

    /// The expiry is judged where the answer is settled.
    pub fn check(&self, bearer: Bearer<'_>, solution: &Value) -> Result<Checked, ChallengeRefusal> {
        let solution = Solution::deserialize(solution).map_err(|_| ChallengeRefusal::Malformed)?;
        let (challenge, answer) = self.open(bearer, &solution.token).ok_or(ChallengeRefusal::NotYours)?;
        let given = solution.answer.trim().to_lowercase();
        Ok(Checked { challenge, right: given.as_bytes().ct_eq(answer.as_slice()).into() })
    }

    /// Fills the pool, then again whenever a picture was taken.
    pub async fn keep_ready(&self) {
        loop {
            self.fill().await;
            self.taken.notified().await;
        }
    }

    /// Draws one at a time, so that at most one core is busy with pictures. Ends when the pool is full.
    pub async fn fill(&self) {
        while self.pool.lock().len() < self.capacity {
            match tokio::task::spawn_blocking(draw).await {
                Ok(Some(picture)) => self.pool.lock().push_back(picture),
                Ok(None) | Err(_) => {
                    tracing::error!("a picture could not be drawn");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    fn seal(&self, bearer: Bearer<'_>, id: ChallengeId, answer: &str) -> Option<String> {
        let mut secret =
            [&id.random.to_be_bytes(), id.expires_at.0.to_be_bytes().as_slice(), answer.as_bytes()].concat();
        let nonce = self.key.seal_in_place_append_tag(Aad::from(bearer.seal_input()), &mut secret).ok()?;
        Some(URL_SAFE_NO_PAD.encode([nonce.as_ref().as_slice(), &secret].concat()))
    }

    fn open(&self, bearer: Bearer<'_>, token: &str) -> Option<(ChallengeId, Vec<u8>)> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(bearer.seal_input()), &mut sealed).ok()?;
        let (random, rest) = opened.split_first_chunk::<ID_BYTES>()?;
        let (expiry, answer) = rest.split_first_chunk::<EXPIRY_BYTES>()?;
        let expires_at = UnixMs(i64::from_be_bytes(*expiry));
        Some((ChallengeId { expires_at, random: u128::from_be_bytes(*random) }, answer.to_vec()))
    }

    #[cfg(test)]
    pub fn ready(&self) -> usize {
        self.pool.lock().len()
    }

    pub fn answer_of(&self, bearer: Bearer<'_>, token: &str) -> Option<String> {
        self.open(bearer, token).and_then(|(_, answer)| String::from_utf8(answer).ok())
    }
}

impl fmt::Debug for Pictures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pictures").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// Takes milliseconds, which is why pictures are drawn ahead.
fn draw() -> Option<Picture> {
    let mut captcha = Captcha::new();
    // Cut out first: the filters then touch a fifth of the canvas, and the noise reaches every corner.
    captcha
        .set_chars(&LETTERS)
        .add_chars(LETTERS_PER_PICTURE)
        .view(SIZE_PX.0, SIZE_PX.1)
        .apply_filter(Wave::new(2.0, 10.0).horizontal())
        .apply_filter(Wave::new(2.0, 10.0).vertical())
        .apply_filter(Noise::new(0.2))
        .apply_filter(Dots::new(10).min_radius(3).max_radius(7));
    let (answer, png) = captcha.as_tuple()?;
    let image = format!("data:image/png;base64,{}", STANDARD.encode(png));
    Some(Picture { answer: answer.to_lowercase(), image: Arc::from(image) })
}
