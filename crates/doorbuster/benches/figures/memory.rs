//! Bytes per live claim: resident memory before and after a million of them, in a process of its own.

use std::process::Command;
use std::sync::Arc;

use doorbuster::gate::{Decision, MemoryGate, Seed, Try};
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;

use crate::report::Report;

const CLAIMS: usize = 1_000_000;

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    let output =
        Command::new(std::env::current_exe()?).args(["--memory-probe", &CLAIMS.to_string()]).output()?;
    let bytes: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
    report.figure(
        "gate_bytes_per_claim",
        bytes,
        "B",
        "memory per live claim, 1,000,000 claims",
        Some((96.0, 64.0)),
        false,
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
    let before = resident_bytes()?;
    for number in 0..claims {
        let buyer = format!("buyer-{number:010}");
        let order = OrderId((1_u128 << 100) + number as u128);
        let attempt = Try { buyer: &buyer, order, quantity: 1, pass_expires_at: UnixMs(1_000) };
        match gate.claim(&offer, &attempt, UnixMs(1)) {
            Decision::Granted(grant) => gate.commit(&grant),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(offer.free(), 0);
    let after = resident_bytes()?;
    println!("{:.1}", (after - before) as f64 / claims as f64);
    drop(Arc::clone(&offer));
    Ok(())
}

fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse()?;
    Ok(kib * 1_024)
}
