//! The load: requests of buyers who come once each, signed or written ahead so that the generator's cost stays out of
//! the measurement, and what a run of them gave.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId};
use rules::pass::{Pass, PassKeys};
use rules::time::UnixMs;
use serde_json::{Value, json};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use stampede::blast::{Blast, Blasted, Pace, Passes, RequestSource, Until};
use stampede::connection::{Timeouts, render_order};
use std::hash::Hasher as _;

use crate::Plan;
use crate::product::{PASS_SECRET, Product, Sale};

/// Passes signed ahead are valid for so long.
const PASS_LIFE_S: u32 = 300;
/// A closed loop never asks for more than this per second.
const MOST_PER_S: f64 = 200_000.0;

/// Distinct buyers' names of 16 characters.
#[derive(Clone, Copy, Debug)]
pub enum Names {
    /// Counted up, as shops number their customers and as load generators do.
    InOrder { run: u16 },
    /// Without an order that an index could lean on: the hardest case for the ledger's index of buyers.
    Scattered { key: (u64, u64) },
}

impl Names {
    pub fn in_order() -> Self {
        Self::InOrder { run: rand::random() }
    }

    pub fn scattered() -> Self {
        Self::Scattered { key: rand::random() }
    }

    pub fn name(self, number: usize) -> String {
        match self {
            Self::InOrder { run } => format!("b{run:04x}{number:011}"),
            Self::Scattered { key } => scattered(key, number),
        }
    }
}

/// 80 bits of a keyed hash: of ten million names two are the same once in ten billion runs.
fn scattered(key: (u64, u64), number: usize) -> String {
    const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    hasher.write_usize(number);
    let mut bits = hasher.finish128().as_u128();
    let mut letter = || {
        let index = (bits & 31) as usize;
        bits >>= 5;
        char::from(LETTERS[index])
    };
    (0..16).map(|_| letter()).collect()
}

/// Passes for distinct buyers, signed with the server's own key.
#[derive(Clone)]
pub struct Minted {
    keys: Arc<PassKeys>,
    offers: Arc<[OfferId]>,
    host: String,
    next: Arc<AtomicUsize>,
    names: Names,
}

/// A pass and whose it is.
pub struct Mint {
    pub offer: OfferId,
    pub order: OrderId,
    pub buyer: BuyerId,
    pub pass: String,
}

impl Minted {
    pub fn new(product: &Product, sale: &Sale) -> Self {
        Self {
            keys: Arc::new(PassKeys::new(PASS_SECRET.as_bytes(), None)),
            offers: sale.offers.clone().into(),
            host: product.address.to_string(),
            next: Arc::new(AtomicUsize::new(0)),
            names: Names::in_order(),
        }
    }

    pub fn scattered(self) -> Self {
        Self { names: Names::scattered(), ..self }
    }

    /// A pass for the next buyer.
    pub fn mint(&self) -> Mint {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let offer = self.offers[number % self.offers.len()];
        let buyer = BuyerId::parse(&self.names.name(number)).unwrap();
        let now = UnixMs(jiff::Timestamp::now().as_millisecond());
        let order = self.keys.mint_order_id(&buyer, now, rand::random());
        let pass = Pass { buyer: buyer.as_str(), offer, order, expires_at: now.plus_s(PASS_LIFE_S) };
        Mint { offer, order, pass: self.keys.sign(&pass), buyer }
    }

    /// So many passes, signed ahead.
    pub fn ahead(&self, count: usize) -> Passes {
        let passes: Vec<_> = (0..count).map(|_| self.mint()).map(|it| (it.offer, it.pass)).collect();
        Passes::new(&self.host, passes, 1)
    }

    /// Bytes of one request.
    pub fn request_bytes(&self) -> usize {
        let mut out = Vec::new();
        self.clone().next(&mut out);
        out.len()
    }
}

/// Signs as it is asked: for loads whose generator's cost does not matter.
impl RequestSource for Minted {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let Mint { offer, pass, .. } = self.mint();
        render_order(&self.host, offer, &pass, 1, out);
        true
    }
}

/// The offer that rivals are asked for, as long as an id of ours.
pub const RIVAL_OFFER: &str = "0000000000000";

/// Requests that a rival understands: the buyer in a header, a body that makes the request as long as ours.
#[derive(Clone)]
pub struct RivalRequests {
    host: Arc<str>,
    buyers: Arc<[String]>,
    bytes: usize,
    cursor: Arc<AtomicUsize>,
}

impl RivalRequests {
    pub fn new(address: SocketAddr, buyers: usize, bytes: usize) -> Self {
        let names = Names::in_order();
        let buyers: Vec<String> = (0..buyers).map(|number| names.name(number)).collect();
        Self { host: address.to_string().into(), buyers: buyers.into(), bytes, cursor: Arc::default() }
    }

    pub fn render(host: &str, buyer: &str, bytes: usize, out: &mut Vec<u8>) {
        const FILLER: [u8; 1_024] = [b'x'; 1_024];
        out.clear();
        let parts =
            ["POST /api/v1/offers/", RIVAL_OFFER, "/orders HTTP/1.1\r\nhost: ", host, "\r\nx-buyer: ", buyer];
        for part in parts {
            out.extend_from_slice(part.as_bytes());
        }
        out.extend_from_slice(b"\r\ncontent-type: application/json\r\ncontent-length: ");
        let around = out.len() + "000\r\n\r\n".len() + r#"{"filler":""}"#.len();
        let filler = &FILLER[..bytes.saturating_sub(around).min(FILLER.len())];
        let length = filler.len() + r#"{"filler":""}"#.len();
        out.extend_from_slice(format!("{length}\r\n\r\n{{\"filler\":\"").as_bytes());
        out.extend_from_slice(filler);
        out.extend_from_slice(b"\"}");
    }
}

impl RequestSource for RivalRequests {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let position = self.cursor.fetch_add(1, Ordering::Relaxed);
        let Some(buyer) = self.buyers.get(position) else { return false };
        Self::render(&self.host, buyer, self.bytes, out);
        true
    }
}

/// Requests that were written ahead.
#[derive(Clone)]
pub struct Written {
    requests: Arc<[Vec<u8>]>,
    cursor: Arc<AtomicUsize>,
}

impl Written {
    pub fn new(requests: Vec<Vec<u8>>) -> Self {
        Self { requests: requests.into(), cursor: Arc::default() }
    }
}

impl RequestSource for Written {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(request) = self.requests.get(self.cursor.fetch_add(1, Ordering::Relaxed)) else {
            return false;
        };
        out.clone_from(request);
        true
    }
}

/// What a contender is asked.
#[derive(Clone)]
pub enum Requests {
    Ours(Passes),
    Rival(RivalRequests),
    Written(Written),
}

impl RequestSource for Requests {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Ours(passes) => passes.next(out),
            Self::Rival(requests) => requests.next(out),
            Self::Written(requests) => requests.next(out),
        }
    }
}

/// As many as a closed loop of this length can possibly use.
pub fn enough_for(run: Duration) -> usize {
    (run.as_secs_f64() * MOST_PER_S) as usize
}

pub fn blast(plan: &Plan, addr: SocketAddr, until: Until, pace: Pace) -> Blast {
    Blast {
        addr,
        connections: plan.connections,
        threads: plan.threads,
        until,
        pace,
        timeouts: Timeouts::default(),
        count_codes: false,
    }
}

/// What one run of one server gave.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub rate: f64,
    pub cpu_us: f64,
    pub generator_cpu_us: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Answers of 503: the ledger did not follow and the queue was full.
    pub busy: u64,
}

impl Sample {
    /// Per answer of `status`; what else was answered only costs. `elapsed`: the time that counts, which may be longer
    /// than the generator was busy.
    pub fn of(blasted: &Blasted, status: u16, elapsed: Duration, cpu: Duration) -> Self {
        let answered = blasted.status(status).max(1) as f64;
        let at = |quantile| blasted.latency_us.value_at_quantile(quantile) as f64 / 1_000.0;
        Self {
            rate: answered / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / answered,
            generator_cpu_us: blasted.cpu.as_secs_f64() * 1e6 / answered,
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            busy: blasted.status(503),
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "rate": self.rate, "cpu_us": self.cpu_us, "generator_cpu_us": self.generator_cpu_us,
            "p50_ms": self.p50_ms, "p99_ms": self.p99_ms, "busy": self.busy,
        })
    }
}
