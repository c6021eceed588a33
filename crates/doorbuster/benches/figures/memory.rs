//! Bytes per live claim: resident memory before and after a million of them, in a process of its own.

use std::process::Command;
use std::sync::Arc;

use doorbuster::gate::{Decision, MemoryGate, Seed, Try};
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;
use serde_json::json;

use crate::load::Names;
use crate::processes::resident_bytes;
use crate::report::{Goal, Report, median};

const CLAIMS: usize = 1_000_000;
const PROBES: usize = 3;

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    report.say("memory: a million claims in a process of their own, three times");
    let probe = |_| -> anyhow::Result<f64> {
        let mut probe = Command::new(std::env::current_exe()?);
        let output = probe.args(["--memory-probe", &CLAIMS.to_string()]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    let bytes = (0..PROBES).map(probe).collect::<anyhow::Result<Vec<_>>>()?;
    report.raw("gate_bytes_per_claim", json!(bytes));
    report.figure(
        "gate_bytes_per_claim",
        median(&bytes),
        "B",
        "memory per live claim, 1,000,000 claims",
        Goal::AtMost { must: 96.0, target: 64.0 },
    );
    Ok(())
}

/// Takes the claims and prints the bytes that each of them costs.
pub fn probe(claims: usize) -> anyhow::Result<()> {
    let gate = MemoryGate::new(claims, (1, 2));
    let seed = Seed {
        offer: OfferId(1),
        state: SaleState::Published,
        window: Window { opens_at: UnixMs(0), closes_at: UnixMs(i64::MAX) },
        free: u32::try_from(claims)?,
        change_no: 0,
    };
    let offer = gate.seed(&seed).expect("the first offer");
    let names = Names::scattered();
    let before = resident_bytes(std::process::id());
    for number in 0..claims {
        let buyer = names.name(number);
        let order = OrderId((1_u128 << 100) + number as u128);
        let attempt = Try { buyer: &buyer, order, quantity: 1, pass_expires_at: UnixMs(1_000) };
        match gate.claim(&offer, &attempt, UnixMs(1)) {
            Decision::Granted(grant) => gate.commit(&grant),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(offer.free(), 0);
    let after = resident_bytes(std::process::id());
    println!("{:.1}", (after - before) as f64 / claims as f64);
    drop(Arc::clone(&offer));
    Ok(())
}
