//! Challenges from issue to the one time they open a door, and every way to open it twice or for another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use altcha::{SolveChallengeOptions, solve_challenge};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use super::spent::MAX_WRONG_ANSWERS;
use super::*;

const SECRET: &[u8] = b"what challenges are sealed with!";
const OFFER: &str = "offer-1";

/// Easy enough for a test, laid out like the real ones.
fn easy() -> ChallengeSettings {
    ChallengeSettings { pow_cost: 2, pow_tries: 20, picture_pool: 8, life_s: 120, spent_limit: 1_000_000 }
}

fn clock() -> Clock {
    Clock::manual(UnixMs(1_796_126_400_000))
}

fn challenges(clock: &Clock) -> Challenges {
    Challenges::new(&easy(), SECRET, clock.clone()).unwrap()
}

async fn challenges_with_pictures(clock: &Clock) -> Challenges {
    let challenges = challenges(clock);
    challenges.pictures.fill().await;
    assert_eq!(challenges.pictures.ready(), easy().picture_pool);
    challenges
}

fn issue(challenges: &Challenges, kind: ChallengeKind) -> Value {
    serde_json::to_value(challenges.issue(kind, "ann", OFFER).unwrap()).unwrap()
}

/// What a page does: reads the JSON, works, sends back JSON.
fn solve_pow(challenge: &Value) -> Value {
    let parsed: altcha::Challenge = serde_json::from_value(challenge.clone()).unwrap();
    let solution = solve_challenge(SolveChallengeOptions::new(&parsed)).unwrap().unwrap();
    json!({"challenge": challenge, "solution": solution})
}

fn solve_picture(challenges: &Challenges, challenge: &Value) -> Value {
    let token = challenge["token"].as_str().unwrap();
    json!({"token": token, "answer": challenges.answer_of("ann", OFFER, token).unwrap()})
}

fn check_pow(challenges: &Challenges, solution: &Value) -> Result<(), ChallengeRefusal> {
    challenges.check(ChallengeKind::Pow, "ann", OFFER, Some(solution))
}

fn check_picture(challenges: &Challenges, solution: &Value) -> Result<(), ChallengeRefusal> {
    challenges.check(ChallengeKind::Picture, "ann", OFFER, Some(solution))
}

#[test]
fn without_a_challenge_nothing_is_asked() {
    let challenges = challenges(&clock());
    assert_eq!(issue(&challenges, ChallengeKind::None), json!({"kind": "none"}));
    assert_eq!(challenges.check(ChallengeKind::None, "ann", OFFER, None), Ok(()));
    assert_eq!(challenges.check(ChallengeKind::None, "ann", OFFER, Some(&json!({"any": "thing"}))), Ok(()));
}

#[test]
fn a_missing_solution_is_told_apart_from_a_wrong_one() {
    let challenges = challenges(&clock());
    for kind in [ChallengeKind::Pow, ChallengeKind::Picture] {
        for missing in [None, Some(&Value::Null)] {
            assert_eq!(challenges.check(kind, "ann", OFFER, missing), Err(ChallengeRefusal::Missing));
        }
    }
}

// Proof of work.

#[test]
fn a_proof_of_work_opens_once() {
    let challenges = challenges(&clock());
    let challenge = issue(&challenges, ChallengeKind::Pow);
    assert_eq!(challenge["kind"], "pow");
    let solution = solve_pow(&challenge);
    assert_eq!(check_pow(&challenges, &solution), Ok(()));
    assert_eq!(check_pow(&challenges, &solution), Err(ChallengeRefusal::Spent));
}

#[test]
fn the_payload_of_the_widget_is_the_same_solution() {
    let challenges = challenges(&clock());
    let solution = solve_pow(&issue(&challenges, ChallengeKind::Pow));
    let payload = json!(STANDARD.encode(solution.to_string()));
    assert_eq!(check_pow(&challenges, &payload), Ok(()));
    assert_eq!(check_pow(&challenges, &solution), Err(ChallengeRefusal::Spent));
}

#[test]
fn a_proof_of_work_is_worth_nothing_to_another() {
    let challenges = challenges(&clock());
    let solution = solve_pow(&issue(&challenges, ChallengeKind::Pow));
    for (buyer, offer) in [("bob", OFFER), ("ann", "offer-2"), ("annoffer", "-1"), ("", "annoffer-1")] {
        let answer = challenges.check(ChallengeKind::Pow, buyer, offer, Some(&solution));
        assert_eq!(answer, Err(ChallengeRefusal::NotYours), "{buyer} {offer}");
    }
    assert_eq!(check_pow(&challenges, &solution), Ok(()));
}

#[test]
fn a_proof_of_work_expires_by_our_clock() {
    let clock = clock();
    let challenges = challenges(&clock);
    let (early, late) = (issue(&challenges, ChallengeKind::Pow), issue(&challenges, ChallengeKind::Pow));
    clock.advance(Duration::from_millis(119_999));
    assert_eq!(check_pow(&challenges, &solve_pow(&early)), Ok(()));
    clock.advance(Duration::from_millis(1));
    assert_eq!(check_pow(&challenges, &solve_pow(&late)), Err(ChallengeRefusal::Expired));
    assert_eq!(check_pow(&challenges, &solve_pow(&early)), Err(ChallengeRefusal::Expired));
}

#[test]
fn a_proof_of_work_lives_by_our_clock_even_when_the_systems_is_ahead() {
    let year_2020 = Clock::manual(UnixMs(1_577_836_800_000));
    let challenges = challenges(&year_2020);
    assert_eq!(check_pow(&challenges, &solve_pow(&issue(&challenges, ChallengeKind::Pow))), Ok(()));
}

#[test]
fn a_challenge_made_easier_is_not_ours() {
    let challenges = challenges(&clock());
    let challenge = issue(&challenges, ChallengeKind::Pow);
    let tampered = [
        ("/parameters/cost", json!(1)),
        ("/parameters/keyPrefix", json!("0")),
        ("/parameters/keyPrefix", json!("")),
        ("/parameters/algorithm", json!("SHA-256")),
        ("/parameters/expiresAt", json!(9_999_999_999_i64)),
        ("/parameters/nonce", json!("00")),
        ("/parameters/salt", json!("00")),
        ("/parameters/keySignature", json!("00")),
        ("/parameters/data/for", json!("")),
        ("/signature", json!("")),
        ("/signature", Value::Null),
        ("/signature", json!("00".repeat(32))),
    ];
    for (place, value) in tampered {
        let mut changed = challenge.clone();
        *changed.pointer_mut(place).unwrap() = value;
        let solution = json!({"challenge": changed, "solution": {"counter": 0, "derivedKey": ""}});
        assert_eq!(check_pow(&challenges, &solution), Err(ChallengeRefusal::Malformed), "{place}");
    }
}

#[test]
fn a_challenge_of_another_secret_or_of_no_secret_is_not_ours() {
    let clock = clock();
    let ours = challenges(&clock);
    let other = Challenges::new(&easy(), b"what others seal theirs with.....", clock).unwrap();
    let solution = solve_pow(&issue(&other, ChallengeKind::Pow));
    assert_eq!(check_pow(&ours, &solution), Err(ChallengeRefusal::Malformed));
    assert!(Challenges::new(&easy(), b"", Clock::system()).is_err());
    assert!(Challenges::new(&easy(), &SECRET[1..], Clock::system()).is_ok(), "how long is for the settings");
}

/// The next start with the same secret has not seen what was answered.
#[tokio::test]
async fn a_challenge_of_an_earlier_start_is_not_ours() {
    let clock = clock();
    let (earlier, ours) = (challenges_with_pictures(&clock).await, challenges(&clock));
    let solution = solve_pow(&issue(&earlier, ChallengeKind::Pow));
    assert_eq!(check_pow(&earlier, &solution), Ok(()));
    assert_eq!(check_pow(&ours, &solution), Err(ChallengeRefusal::Malformed));
    let solution = solve_picture(&earlier, &issue(&earlier, ChallengeKind::Picture));
    assert_eq!(check_picture(&earlier, &solution), Ok(()));
    assert_eq!(check_picture(&ours, &solution), Err(ChallengeRefusal::NotYours));
}

#[test]
fn work_not_done_is_wrong_and_spoils_nothing() {
    let challenges = challenges(&clock());
    let challenge = issue(&challenges, ChallengeKind::Pow);
    let solution = solve_pow(&challenge);
    let prefix = challenge["parameters"]["keyPrefix"].as_str().unwrap();
    for key in ["", "zz", "00", prefix, &format!("{prefix}{}", "0".repeat(32))] {
        let mut guess = solution.clone();
        guess["solution"]["derivedKey"] = json!(key);
        assert_eq!(check_pow(&challenges, &guess), Err(ChallengeRefusal::Wrong), "{key}");
    }
    let other = solve_pow(&issue(&challenges, ChallengeKind::Pow));
    let crossed = json!({"challenge": challenge, "solution": other["solution"]});
    assert_eq!(check_pow(&challenges, &crossed), Err(ChallengeRefusal::Wrong));
    assert_eq!(check_pow(&challenges, &solution), Ok(()));
}

#[test]
fn garbled_and_huge_solutions_are_refused() {
    let challenges = challenges(&clock());
    let mut huge = solve_pow(&issue(&challenges, ChallengeKind::Pow));
    assert!(huge.to_string().len() < MAX_SOLUTION_BYTES / 2);
    huge["padding"] = json!("x".repeat(MAX_SOLUTION_BYTES));
    let garbled = [
        huge,
        json!(STANDARD.encode(vec![b' '; MAX_SOLUTION_BYTES])),
        json!("not base64"),
        json!(STANDARD.encode("{}")),
        json!(7),
        json!(true),
        json!([]),
        json!({}),
        json!({"challenge": {}, "solution": {}}),
        json!({"challenge": issue(&challenges, ChallengeKind::Pow), "solution": {"counter": -1, "derivedKey": "00"}}),
        json!({"challenge": issue(&challenges, ChallengeKind::Pow), "solution": null}),
    ];
    for solution in &garbled {
        assert_eq!(check_pow(&challenges, solution), Err(ChallengeRefusal::Malformed), "{solution}");
        assert_eq!(check_picture(&challenges, solution), Err(ChallengeRefusal::Malformed), "{solution}");
    }
}

#[test]
fn the_longest_buyer_and_offer_still_fit_into_a_solution() {
    let challenges = challenges(&clock());
    let (buyer, offer) = ("\"".repeat(128), "o".repeat(128));
    let challenge = challenges.issue(ChallengeKind::Pow, &buyer, &offer).unwrap();
    let solution = solve_pow(&serde_json::to_value(challenge).unwrap());
    assert_eq!(challenges.check(ChallengeKind::Pow, &buyer, &offer, Some(&solution)), Ok(()));
}

#[test]
fn the_hidden_number_stays_within_half_and_one_and_a_half_of_the_setting() {
    let challenges = challenges(&clock());
    for _ in 0..50 {
        let solution = solve_pow(&issue(&challenges, ChallengeKind::Pow));
        let counter = solution["solution"]["counter"].as_u64().unwrap();
        assert!((10..=30).contains(&counter), "{counter}");
    }
}

#[test]
fn of_many_answers_at_once_exactly_one_wins() {
    let challenges = challenges(&clock());
    for _ in 0..20 {
        let solution = solve_pow(&issue(&challenges, ChallengeKind::Pow));
        let (won, start) = (AtomicUsize::new(0), std::sync::Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    match check_pow(&challenges, &solution) {
                        Ok(()) => won.fetch_add(1, Ordering::AcqRel),
                        Err(refusal) => {
                            assert_eq!(refusal, ChallengeRefusal::Spent);
                            0
                        }
                    }
                });
            }
        });
        assert_eq!(won.into_inner(), 1);
    }
}

// What has been answered.

#[test]
fn a_full_memory_refuses_instead_of_forgetting() {
    let clock = clock();
    let settings = ChallengeSettings { spent_limit: 3, ..easy() };
    let challenges = Challenges::new(&settings, SECRET, clock.clone()).unwrap();
    let solutions: Vec<_> = (0..4).map(|_| solve_pow(&issue(&challenges, ChallengeKind::Pow))).collect();
    for solution in &solutions[..3] {
        assert_eq!(check_pow(&challenges, solution), Ok(()));
    }
    assert_eq!(check_pow(&challenges, &solutions[3]), Err(ChallengeRefusal::Busy));
    for solution in &solutions[..3] {
        assert_eq!(check_pow(&challenges, solution), Err(ChallengeRefusal::Spent));
    }

    clock.advance(Duration::from_secs(120));
    let fresh = solve_pow(&issue(&challenges, ChallengeKind::Pow));
    assert_eq!(check_pow(&challenges, &fresh), Ok(()));
    assert_eq!(challenges.spent.len(), 1);
}

#[test]
fn the_memory_forgets_faster_than_it_fills() {
    let clock = clock();
    let spent = Spent::new(1_000, clock.clone());
    let answer = |random| {
        let challenge = ChallengeId { expires_at: clock.now().plus_s(120), random };
        spent.settle(Checked { challenge, right: true })
    };
    for random in 0..1_000 {
        assert_eq!(answer(random), Ok(()));
    }
    assert_eq!(answer(1_000), Err(ChallengeRefusal::Busy));
    clock.advance(Duration::from_secs(120));
    for random in 0..40 {
        assert_eq!(answer(random), Ok(()));
    }
    assert_eq!(spent.len(), 40);
}

// Pictures.

#[tokio::test]
async fn a_picture_opens_once_whatever_the_case_of_its_letters() {
    let challenges = challenges_with_pictures(&clock()).await;
    let challenge = issue(&challenges, ChallengeKind::Picture);
    assert_eq!(challenge["kind"], "picture");
    assert_eq!(challenge["expires_at"], "2026-12-01T12:02:00.000Z");
    let mut solution = solve_picture(&challenges, &challenge);
    solution["answer"] = json!(format!(" {} ", solution["answer"].as_str().unwrap().to_uppercase()));
    assert_eq!(check_picture(&challenges, &solution), Ok(()));
    assert_eq!(check_picture(&challenges, &solution), Err(ChallengeRefusal::Spent));
}

#[tokio::test]
async fn a_picture_is_a_png_and_its_token_does_not_tell_the_answer() {
    let challenges = challenges_with_pictures(&clock()).await;
    let challenge = issue(&challenges, ChallengeKind::Picture);
    let image = challenge["image"].as_str().unwrap();
    let png = STANDARD.decode(image.strip_prefix("data:image/png;base64,").unwrap()).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() < 32 * 1024, "{} bytes", png.len());

    let solution = solve_picture(&challenges, &challenge);
    let answer = solution["answer"].as_str().unwrap();
    assert_eq!(answer.len(), 5);
    let token = URL_SAFE_NO_PAD.decode(challenge["token"].as_str().unwrap()).unwrap();
    let folded = String::from_utf8_lossy(&token).to_lowercase();
    assert!(
        !folded.contains(answer) && !challenge.to_string().to_lowercase().contains(&format!("\"{answer}\""))
    );
}

#[tokio::test]
async fn a_picture_allows_three_wrong_answers() {
    let challenges = challenges_with_pictures(&clock()).await;
    let right = solve_picture(&challenges, &issue(&challenges, ChallengeKind::Picture));
    let mut wrong = right.clone();
    wrong["answer"] = json!("?????");
    for _ in 0..MAX_WRONG_ANSWERS {
        assert_eq!(check_picture(&challenges, &wrong), Err(ChallengeRefusal::Wrong));
    }
    assert_eq!(check_picture(&challenges, &wrong), Err(ChallengeRefusal::Spent));
    assert_eq!(check_picture(&challenges, &right), Err(ChallengeRefusal::Spent));
}

#[tokio::test]
async fn a_slip_of_the_finger_costs_no_picture() {
    let challenges = challenges_with_pictures(&clock()).await;
    let right = solve_picture(&challenges, &issue(&challenges, ChallengeKind::Picture));
    let mut wrong = right.clone();
    wrong["answer"] = json!("");
    assert_eq!(check_picture(&challenges, &wrong), Err(ChallengeRefusal::Wrong));
    assert_eq!(check_picture(&challenges, &right), Ok(()));
}

#[tokio::test]
async fn a_picture_is_worth_nothing_to_another_and_expires() {
    let clock = clock();
    let challenges = challenges_with_pictures(&clock).await;
    let right = solve_picture(&challenges, &issue(&challenges, ChallengeKind::Picture));
    for (buyer, offer) in [("bob", OFFER), ("ann", "offer-2"), ("annoffer", "-1")] {
        let answer = challenges.check(ChallengeKind::Picture, buyer, offer, Some(&right));
        assert_eq!(answer, Err(ChallengeRefusal::NotYours));
    }
    assert_eq!(challenges.spent.len(), 0, "a stranger's try must not use up ann's");
    clock.advance(Duration::from_secs(120));
    assert_eq!(check_picture(&challenges, &right), Err(ChallengeRefusal::Expired));
}

#[tokio::test]
async fn a_bent_token_is_refused_and_remembered_nowhere() {
    let challenges = challenges_with_pictures(&clock()).await;
    let right = solve_picture(&challenges, &issue(&challenges, ChallengeKind::Picture));
    let token = right["token"].as_str().unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(token).unwrap();
    for at in 0..bytes.len() {
        bytes[at] ^= 1;
        let bent = json!({"token": URL_SAFE_NO_PAD.encode(&bytes), "answer": right["answer"]});
        assert_eq!(check_picture(&challenges, &bent), Err(ChallengeRefusal::NotYours), "byte {at}");
        bytes[at] ^= 1;
    }
    for garbled in ["", "A", "====", &token[..20], &format!("{token}AAAA")] {
        let bent = json!({"token": garbled, "answer": right["answer"]});
        assert_eq!(check_picture(&challenges, &bent), Err(ChallengeRefusal::NotYours), "{garbled:?}");
    }
    assert_eq!(challenges.spent.len(), 0);
    assert_eq!(check_picture(&challenges, &right), Ok(()));
}

#[tokio::test]
async fn an_empty_pool_is_busy_and_the_worker_fills_it_to_its_bound() {
    let challenges = challenges_with_pictures(&clock()).await;
    for _ in 0..easy().picture_pool {
        assert!(challenges.issue(ChallengeKind::Picture, "ann", OFFER).is_ok());
    }
    let refused = challenges.issue(ChallengeKind::Picture, "ann", OFFER).map(|_| ());
    assert_eq!(refused, Err(ChallengeRefusal::Busy));

    let shutdown = CancellationToken::new();
    let full = async || {
        while challenges.pictures.ready() < easy().picture_pool {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let buying = async {
        full().await;
        assert!(challenges.issue(ChallengeKind::Picture, "ann", OFFER).is_ok());
        full().await;
        shutdown.cancel();
    };
    let both = async { tokio::join!(challenges.keep_pictures_ready(shutdown.clone()), buying) };
    tokio::time::timeout(Duration::from_secs(30), both).await.expect("filled twice and stopped in time");
}

#[tokio::test]
async fn pictures_ask_for_different_answers() {
    let challenges = challenges_with_pictures(&clock()).await;
    let answers: std::collections::HashSet<String> = (0..easy().picture_pool)
        .map(|_| {
            solve_picture(&challenges, &issue(&challenges, ChallengeKind::Picture))["answer"].to_string()
        })
        .collect();
    assert!(answers.len() > 4, "{answers:?}");
}

#[test]
fn no_secret_is_shown() {
    let shown = format!("{:?}", challenges(&clock()));
    assert!(!shown.contains("secret"), "{shown}");
}
