//! The real binary, started as people and scripts start it: what it says, where, and with which code it ends.

/// Without a server.
mod folder;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{Process, Program, Stream};

const PATIENCE: Duration = Duration::from_secs(60);
const ADMIN_KEY: &str = "planted-admin-key-0123456789abcdef0123456789abcdef";
const AUTH_SECRET: &str = "planted-auth-secret-0123456789abcdef0123456789abcdef";
const PASS_SECRET: &str = "planted-pass-secret-0123456789abcdef0123456789abcdef";

/// How a run ended and what it said.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

fn program(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_doorbuster")).args(args)
}

fn end(process: &Process) -> Ended {
    let code = process.wait(PATIENCE).unwrap().code();
    // The pipes are read by threads of their own, which may be a step behind the end.
    testkit::eventually(PATIENCE, || process.output_ended());
    let of = |wanted: Stream| {
        let lines = process.lines().into_iter().filter(|line| line.stream == wanted);
        lines.map(|line| line.text + "\n").collect::<String>()
    };
    Ended { code, out: of(Stream::Stdout), err: of(Stream::Stderr) }
}

fn run(args: &[&str]) -> Ended {
    end(&program(args).start().unwrap())
}

fn with_secrets(program: Program) -> Program {
    program
        .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
        .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
        .env("DOORBUSTER_PASS__SECRET", PASS_SECRET)
}

/// A data folder, and servers and commands on it.
struct Shop {
    folder: TempDir,
}

impl Shop {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn start(&self, more: &[&str]) -> Process {
        let args = ["serve", "--data-dir", self.path(), "--listen", "127.0.0.1:0"];
        with_secrets(program(&args).args(more)).start().unwrap()
    }

    fn started(&self) -> Process {
        let server = self.start(&[]);
        server.wait_for_line("listening on http://127.0.0.1:", PATIENCE).unwrap();
        server
    }

    fn run(&self, args: &[&str]) -> Ended {
        let args = with_secrets(program(args).args(["--data-dir", self.path()]));
        end(&args.start().unwrap())
    }

    fn run_json(&self, args: &[&str]) -> Value {
        self.run(&[args, &["--json"]].concat()).expect(0).json()
    }

    fn draft(&self, stock: u32) -> PathBuf {
        let path = self.folder.path().join("night.json");
        std::fs::write(&path, crate::app::draft(stock).to_string()).unwrap();
        path
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn serve_without_secrets_is_refused_and_each_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(&["serve", "--data-dir", text(folder.path())]).expect(1);
    for name in ["DOORBUSTER_ADMIN_KEY", "DOORBUSTER_PASS__SECRET", "DOORBUSTER_AUTH__HS256_SECRET"] {
        assert!(ended.err.contains(name), "{name}: {}", ended.err);
    }
    assert_eq!((ended.err.lines().count(), ended.out.as_str()), (3, ""));
}

#[test]
fn serve_says_where_it_listens_and_ends_in_order_when_asked() {
    let shop = Shop::new();
    let server = shop.start(&["--set", "operator_listen=127.0.0.1:0"]);
    let line = server.wait_for_line("listening on http://", PATIENCE).unwrap();
    let operator = server.wait_for_line("operator side at ", PATIENCE).unwrap();
    let run_file = shop.folder.path().join("run.json");
    let told: Value = serde_json::from_slice(&std::fs::read(&run_file).unwrap()).unwrap();
    assert_eq!(line, format!("listening on {}", told["url"].as_str().unwrap()));
    assert_eq!(operator, format!("operator side at {}", told["operator_url"].as_str().unwrap()));
    assert_eq!(told["pid"], server.id());
    server.terminate().unwrap();
    let ended = end(&server).expect(0);
    assert_eq!(ended.out, format!("{line}\n{operator}\n"), "standard output carries nothing else");
    assert!(!run_file.exists());
    let last = ended.err.lines().last().unwrap();
    assert!(last.contains("drained, ended in order"), "{}", ended.err);
}

#[test]
fn an_idle_server_does_not_wait_for_the_end_of_its_drain() {
    let shop = Shop::new();
    let server = shop.start(&["--set", "drain_s=600"]);
    server.wait_for_line("listening on", PATIENCE).unwrap();
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn a_second_process_on_the_same_folder_is_refused_in_a_sentence() {
    let shop = Shop::new();
    let first = shop.started();
    let refused = end(&shop.start(&[])).expect(1);
    let sentence = format!("another doorbuster (process {}) uses the data folder", first.id());
    assert!(refused.err.contains(&sentence), "{}", refused.err);
}

/// Sells one unit on a server that then ends in order.
fn sell_one(shop: &Shop) {
    let server = shop.start(&["--set", "demo=true"]);
    let line = server.wait_for_line("listening on ", PATIENCE).unwrap();
    let url = line.strip_prefix("listening on ").unwrap().to_owned();
    let sale = shop.run_json(&["sale", "create", text(&shop.draft(7)), "--publish"]);
    let order = buy_one(&url, sale["offers"][0]["id"].as_str().unwrap());
    assert_eq!(order["state"], "awaiting_payment", "{order}");
    server.terminate().unwrap();
    end(&server).expect(0);
}

/// What a demo's server says to a try of ann; nothing when it dies over it.
fn buy_one(url: &str, offer: &str) -> Value {
    let buying = async {
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let post = async |path: String, token: &str, body: Value| {
            let request = client.post(format!("{url}{path}")).bearer_auth(token);
            match request.header("prefer", "wait=30").json(&body).send().await {
                Ok(answer) => answer.json::<Value>().await.unwrap_or_default(),
                Err(_) => Value::Null,
            }
        };
        let login = post("/api/v1/demo/login".to_owned(), "", json!({"buyer": "ann"})).await;
        let token = login["token"].as_str().unwrap();
        let pass = post(format!("/api/v1/offers/{offer}/pass"), token, json!({})).await;
        let body = json!({"pass": pass["pass"].as_str().unwrap(), "quantity": 1});
        post(format!("/api/v1/offers/{offer}/orders"), "", body).await
    };
    tokio::runtime::Runtime::new().unwrap().block_on(buying)
}

#[test]
fn a_journal_that_is_not_the_ledgers_is_refused_with_what_to_do() {
    let (shop, other) = (Shop::new(), Shop::new());
    sell_one(&shop);
    sell_one(&other);
    let journal = |of: &Shop| of.folder.path().join("journal.db");
    let kept = shop.folder.path().join("kept.db");
    std::fs::rename(journal(&shop), &kept).unwrap();
    for command in ["serve", "migrate"] {
        let args = [command, "--data-dir", shop.path(), "--set", "listen=127.0.0.1:0"];
        let lost = end(&with_secrets(program(&args)).start().unwrap()).expect(1);
        assert!(lost.err.contains("replaced or lost. Restore it from the same moment"), "{}", lost.err);
        assert!(!lost.out.contains("listening"), "{}", lost.out);
    }

    std::fs::copy(journal(&other), journal(&shop)).unwrap();
    let foreign = end(&shop.start(&[])).expect(1);
    let what_to_do = "belongs to another ledger. Put the files of one backup together";
    assert!(foreign.err.contains(what_to_do), "{}", foreign.err);

    std::fs::rename(&kept, journal(&shop)).unwrap();
    let server = shop.started();
    let listed = shop.run_json(&["sale", "list"]);
    let stats = shop.run_json(&["sale", "stats", listed["items"][0]["id"].as_str().unwrap()]);
    assert_eq!(stats["offers"][0]["held"], 1, "{stats}");
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn migrate_beside_a_running_server_says_that_it_is_done() {
    let shop = Shop::new();
    let server = shop.started();
    let said = shop.run(&["migrate"]).expect(0).out;
    assert!(said.contains("brought its tables up to date when it started"), "{said}");
    let told: Value =
        serde_json::from_slice(&std::fs::read(shop.folder.path().join("run.json")).unwrap()).unwrap();
    assert_eq!(shop.run_json(&["migrate"]), json!({"server": told["operator_url"]}));
    let url = told["url"].as_str().unwrap();
    assert!(run(&["migrate", "--server", url]).expect(0).out.contains(url));
    server.kill().unwrap();
    server.wait(PATIENCE).unwrap();
    let said = shop.run(&["migrate"]).expect(0).out;
    assert!(said.contains("ledger: already at version"), "a dead server is not believed: {said}");
    let refused = run(&["migrate", "--server", url]).expect(1);
    assert!(refused.err.contains("no answer from"), "{}", refused.err);
}

#[test]
fn a_taken_port_is_named_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let shop = Shop::new();
    let args = ["serve", "--data-dir", shop.path(), "--listen", &address];
    let refused = end(&with_secrets(program(&args)).start().unwrap()).expect(1);
    assert!(refused.err.contains(&address) && refused.err.contains("choose another port"), "{}", refused.err);
}

#[test]
fn settings_are_checked_and_printed_without_their_secrets() {
    let shop = Shop::new();
    let checked = shop.run(&["config", "check"]).expect(0);
    let printed = shop.run(&["config", "print", "--set", "limits.in_flight=77"]).expect(0);
    assert!(printed.out.contains("in_flight = 77") && printed.out.contains("admin_key = \"(set)\""));
    let wrong =
        shop.run(&["config", "check", "--set", "limits.in_flight=0", "--set", "drain_s=9999"]).expect(1);
    assert!(wrong.err.contains("limits.in_flight") && wrong.err.contains("drain_s"), "{}", wrong.err);
    let unknown = shop.run(&["config", "check", "--set", "lissten=1"]).expect(1);
    assert!(unknown.err.contains("did you mean `listen`?"), "{}", unknown.err);
    for said in [&checked, &printed, &wrong, &unknown] {
        assert!(!said.out.contains("planted") && !said.err.contains("planted"), "{}{}", said.out, said.err);
    }
    let several = ["--set", "lissten=1", "--set", "drain_s=soon", "--set", "limits.in_flight=0"];
    for command in [&["config", "check"][..], &["serve"]] {
        let said = shop.run(&[command, &several].concat()).expect(1).err;
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 3, "{said}");
        for (line, name) in lines.iter().zip(["`drain_s`", "`lissten`", "limits.in_flight: "]) {
            assert!(line.contains(name), "{name}: {said}");
        }
    }
    let file = shop.folder.path().join("shop.toml");
    std::fs::write(&file, &printed.out).unwrap();
    let placeholder = run(&["config", "check", "--config", text(&file)]).expect(1).err;
    assert!(
        placeholder.contains("`admin_key`") && placeholder.contains("in place of a secret"),
        "{placeholder}"
    );
    let missing = run(&["serve", "--config", "/nowhere/shop.toml"]).expect(1);
    assert!(missing.err.contains("/nowhere/shop.toml cannot be read"), "{}", missing.err);
    let default = run(&["config", "default"]).expect(0);
    assert_eq!(default.out.trim_end(), doorbuster::config::DEFAULT_TOML.trim_end());
}

#[test]
fn settings_are_checked_and_printed_for_scripts() {
    let shop = Shop::new();
    let clean = json!({"problems": [], "warnings": []});
    assert_eq!(shop.run_json(&["config", "check"]), clean);
    let wrong = ["config", "check", "--json", "--set", "limits.in_flight=0", "--set", "drain_s=9999"];
    let wrong = shop.run(&wrong).expect(1).json();
    let keys: Vec<_> = wrong["problems"].as_array().unwrap().iter().map(|problem| &problem["key"]).collect();
    assert_eq!(keys, ["drain_s", "limits.in_flight"]);
    assert!(wrong["problems"][0]["sentence"].as_str().unwrap().contains("9999"), "{wrong}");
    let unknown = shop.run(&["config", "check", "--json", "--set", "lissten=1"]).expect(1).json();
    assert!(unknown["problems"][0]["sentence"].as_str().unwrap().contains("did you mean `listen`?"));
    let printed = shop.run_json(&["config", "print", "--set", "limits.in_flight=77"]);
    assert_eq!((&printed["limits"]["in_flight"], &printed["admin_key"]), (&json!(77), &json!("(set)")));
    let text = shop.run(&["config", "print", "--set", "limits.in_flight=77"]).expect(0).out;
    assert_eq!(serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap(), printed);
}

#[test]
fn a_variable_that_is_no_setting_is_a_warning() {
    let shop = Shop::new();
    let strange = |args: &[&str]| {
        let args = with_secrets(program(args).args(["--data-dir", shop.path()]));
        let args = args.env("DOORBUSTER_SERVICE_HOST", "10.0.0.1").env("DOORBUSTER_LIMITS__INFLIGHT", "7");
        args.start().unwrap()
    };
    let checked = end(&strange(&["config", "check", "--json"])).expect(0).json();
    assert_eq!(checked["warnings"].as_array().unwrap().len(), 2, "{checked}");
    let made = end(&strange(&["migrate"])).expect(0);
    assert!(made.err.contains("did you mean `DOORBUSTER_LIMITS__IN_FLIGHT`?"), "{}", made.err);
    let listed = end(&strange(&["sale", "list"])).expect(0);
    assert!(listed.err.contains("DOORBUSTER_SERVICE_HOST sets nothing"), "{}", listed.err);
    let server = strange(&["serve", "--listen", "127.0.0.1:0"]);
    server.wait_for_line("listening on http://127.0.0.1:", PATIENCE).unwrap();
    server.terminate().unwrap();
    assert!(end(&server).expect(0).err.contains("DOORBUSTER_SERVICE_HOST sets nothing"));
}

#[test]
fn the_openapi_document_is_printed() {
    let document = run(&["openapi"]).expect(0).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert!(document["paths"]["/api/v1/time"]["get"].is_object());
    assert!(document["paths"]["/admin/v1/sales"]["post"].is_object());
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).expect(0).out;
        assert!(script.contains("doorbuster") && script.contains("preheat"), "{shell}");
    }
}

#[test]
fn wrong_usage_ends_with_code_two() {
    run(&["--frobnicate"]).expect(2);
    run(&["serve", "--frobnicate"]).expect(2);
    run(&["frobnicate"]).expect(2);
    run(&["sale", "show", "not-an-id"]).expect(2);
    run(&["demo", "--open-in", "soon"]).expect(2);
    run(&["demo", "--stock", "0"]).expect(2);
    run(&["webhooks", "show", "not-an-id"]).expect(2);
    let wrong = run(&["events", "tail", "--types", "orders"]).expect(2);
    assert!(wrong.err.contains("order.*"), "{}", wrong.err);
    let wrong = run(&["events", "tail", "--since", "yesterday"]).expect(2);
    assert!(wrong.err.contains("2h"), "{}", wrong.err);
    run(&["events", "tail", "--since", "2h", "--last", "3"]).expect(2);
    let slip = run(&["events", "tail", "--types", "order.*,order.payed"]).expect(2);
    assert!(slip.err.contains("did you mean order.paid?"), "{}", slip.err);
    let zone = run(&["events", "tail", "--since", "2026-12-01T12:00:00"]).expect(2);
    assert!(zone.err.contains("add Z"), "{}", zone.err);
    let change = run(&["sale", "stock", "01m7h12ebb6w9scvfaw00tvy23", "abc"]).expect(2);
    assert!(change.err.contains("such as +50 or -20"), "{}", change.err);
    assert!(run(&["--version"]).expect(0).out.starts_with("doorbuster 0."));
}

#[test]
fn help_of_commands_within_commands_has_examples() {
    let help = run(&["sale", "create", "--help"]).expect(0).out;
    assert!(help.contains("Examples:\n  doorbuster sale create night.json"), "{help}");
    assert!(help.contains("<SALE_FILE>") && help.contains("{\"title\": \"1499 night\""), "{help}");
}

#[test]
fn a_folder_is_migrated_once() {
    let shop = Shop::new();
    let made = shop.run(&["migrate"]).expect(0).out;
    assert!(made.contains("ledger: made, version") && made.contains("journal: made, version"), "{made}");
    let again = shop.run(&["migrate"]).expect(0).out;
    assert!(again.contains("ledger: already at version"), "{again}");
    assert_eq!(shop.run_json(&["migrate"])["ledger"]["from"], shop.run_json(&["migrate"])["ledger"]["to"]);
}

/// The same commands find a running server and a folder without one.
fn operate(shop: &Shop) {
    let draft = shop.draft(7);
    let sale = shop.run_json(&["sale", "create", text(&draft)]);
    let shown = shop.run(&["sale", "show", sale["id"].as_str().unwrap()]).expect(0).out;
    assert!(shown.contains("state    draft\n"), "a draft is in no phase: {shown}");
    let listed = shop.run(&["sale", "list"]).expect(0).out;
    assert!(listed.contains("draft  -      20"), "{listed}");
    assert_eq!(sale["state"], "draft");
    let id = sale["id"].as_str().unwrap();
    let offer = sale["offers"][0]["id"].as_str().unwrap();
    assert!(shop.run(&["sale", "list"]).expect(0).out.contains(id));
    let said = shop.run(&["sale", "publish", id]).expect(0).out;
    assert!(said.contains("is published (open)"), "{said}");
    assert!(shop.run(&["preheat", id]).expect(0).out.contains("knew all 1 offers already"));
    assert_eq!(shop.run_json(&["sale", "stock", offer, "-2", "--change-id", "fewer"])["stock"], 5);
    assert_eq!(shop.run_json(&["sale", "stock", offer, "-2", "--change-id", "fewer"])["stock"], 5);
    let stats = shop.run_json(&["sale", "stats", id]);
    let numbers = &stats["offers"][0];
    assert_eq!((&numbers["stock"], &numbers["free"], &numbers["held"]), (&json!(5), &json!(5), &json!(0)));
    let table = shop.run(&["sale", "stats", id]).expect(0).out;
    assert!(table.contains("GRANTED") && table.contains("queue: 0 claims"), "{table}");
    assert!(table.contains("counted since the server started at 20"), "{table}");
    assert!(shop.run(&["sale", "pause", id]).expect(0).out.contains("is paused"));
    assert!(shop.run(&["sale", "resume", id]).expect(0).out.contains("is published"));
    let refused = shop.run(&["sale", "delete", id]).expect(1);
    assert!(refused.err.contains("sale show"), "what to do next: {}", refused.err);
    assert!(shop.run(&["sale", "end", id]).expect(0).out.contains("is ended (closed)"));
    let shown = shop.run(&["sale", "show", id]).expect(0).out;
    assert!(shown.contains("1499 night") && shown.contains("1499.00 CNY"), "{shown}");
}

#[test]
fn sales_are_operated_on_a_running_server() {
    let shop = Shop::new();
    let server = shop.started();
    operate(&shop);
    let wrong = shop.run(&["sale", "list", "--admin-key", "wrong"]).expect(1);
    assert!(wrong.err.contains("DOORBUSTER_ADMIN_KEY"), "{}", wrong.err);
    server.terminate().unwrap();
    let diary = end(&server).expect(0).err;
    for act in ["sale published", "stock changed", "sale paused", "sale resumed", "sale ended"] {
        assert!(diary.contains(&format!("\"{act}\"")), "{act}: {diary}");
    }
}

#[test]
fn sales_are_operated_while_no_server_runs() {
    let shop = Shop::new();
    shop.run(&["migrate"]).expect(0);
    operate(&shop);
    let server = shop.started();
    assert_eq!(
        shop.run_json(&["sale", "list"])["items"].as_array().unwrap().len(),
        1,
        "the server sees what was done"
    );
    server.kill().unwrap();
    server.wait(PATIENCE).unwrap();
    assert!(shop.folder.path().join("run.json").exists(), "a killed server takes nothing back");
    assert_eq!(
        shop.run_json(&["sale", "list"])["items"].as_array().unwrap().len(),
        1,
        "and is not waited for"
    );
}

fn types(said: &str) -> Vec<String> {
    let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn events_are_followed_on_a_running_server() {
    let shop = Shop::new();
    let server = shop.started();
    let sale = shop.run_json(&["sale", "create", text(&shop.draft(7)), "--publish"]);
    let id = sale["id"].as_str().unwrap();
    let all = ["sale.created", "sale.published", "sale.opened"];
    let said = shop.run(&["events", "tail", "--no-follow", "--json"]).expect(0).out;
    assert_eq!(types(&said), all);
    assert_eq!(
        types(&shop.run(&["events", "tail", "--no-follow", "--json", "-n", "1"]).expect(0).out),
        all[2..]
    );
    let since = shop.run(&["events", "tail", "--no-follow", "--json", "--since", "1h"]).expect(0).out;
    assert_eq!(types(&since), all);
    let first: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let after = first["id"].as_str().unwrap();
    let after = shop.run(&["events", "tail", "--no-follow", "--json", "--after", after]).expect(0).out;
    assert_eq!(types(&after), all[1..]);

    let args = ["events", "tail", "--types", "sale.paused,sale.resumed", "--data-dir", shop.path()];
    let tail = with_secrets(program(&args)).start().unwrap();
    shop.run(&["sale", "pause", id]).expect(0);
    let line = tail.wait_for_line("", PATIENCE).unwrap();
    assert!(line.contains(&format!("sale.paused            sale {id}")), "{line}");
    shop.run(&["sale", "end", id]).expect(0);
    tail.terminate().unwrap();
    let ended = end(&tail).expect(0);
    assert_eq!(ended.out.lines().count(), 1, "only what was asked for: {}", ended.out);
    let args = ["events", "tail", "--data-dir", shop.path()];
    let tail = with_secrets(program(&args)).start().unwrap();
    tail.wait_for(PATIENCE, |line| line.text.contains("sale.ended")).unwrap();
    server.kill().unwrap();
    let cut = end(&tail).expect(1).err;
    let (reason, way_on) = cut.split_once('\n').unwrap();
    assert!(reason.contains("no answer from") && way_on.contains("events tail --after"), "{cut}");
}

#[test]
fn events_of_a_folder_without_a_server_are_shown_and_that_is_all() {
    let shop = Shop::new();
    assert!(shop.run(&["events", "tail"]).expect(1).err.contains("--data-dir"));
    shop.run(&["migrate"]).expect(0);
    shop.run_json(&["sale", "create", text(&shop.draft(7))]);
    let said = shop.run(&["events", "tail"]).expect(0);
    assert!(
        said.out.contains("sale.created") && said.err.contains("No server runs"),
        "{}{}",
        said.out,
        said.err
    );
}

/// A server that is full of those who wait answers at once, with nothing: whoever follows must not ask without end.
#[test]
fn events_are_not_asked_for_without_a_pause_where_the_server_does_not_wait() {
    use std::io::{Read as _, Write as _};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked: std::sync::Arc<parking_lot::Mutex<Vec<std::time::Instant>>> = std::sync::Arc::default();
    let times = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                head.extend_from_slice(&byte);
            }
            times.lock().push(std::time::Instant::now());
            let body = json!({"items": [], "cursor": "5q0a5zpfrr0h60000000000009", "missed": 0}).to_string();
            let length = body.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let tail = with_secrets(program(&["events", "tail", "--server", &url])).start().unwrap();
    // The first one asks for the newest, which nobody waits for.
    testkit::eventually(PATIENCE, || asked.lock().len() >= 4);
    tail.terminate().unwrap();
    end(&tail).expect(0);
    let asked = asked.lock();
    // Counted from the answer to the first: how late a slow server saw a question says nothing about its asker.
    for (pauses, question) in [(1, asked[2]), (2, asked[3])] {
        let after = question - asked[0];
        assert!(after >= Duration::from_millis(900) * pauses, "{after:?}");
    }
}

/// An address that takes everything.
fn taker() -> (String, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicUsize, Ordering};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks", listener.local_addr().unwrap());
    let taken = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&taken);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            // The head, and the whole body that it tells of.
            loop {
                let mut part = [0; 4_096];
                let read = stream.read(&mut part).unwrap_or(0);
                request.extend_from_slice(&part[..read]);
                let text = String::from_utf8_lossy(&request);
                let head = text.find("\r\n\r\n");
                let length = text
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
                if read == 0 || head.is_some_and(|head| request.len() >= head + 4 + length.unwrap_or(0)) {
                    break;
                }
            }
            if String::from_utf8_lossy(&request).contains("webhook.test") {
                count.fetch_add(1, Ordering::SeqCst);
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
        }
    });
    (url, taken)
}

#[test]
fn webhooks_are_made_tested_mended_and_removed() {
    let shop = Shop::new();
    let server = shop.start(&["--set", "webhooks.private_addresses=true"]);
    server.wait_for_line("listening on http://127.0.0.1:", PATIENCE).unwrap();
    assert!(shop.run(&["webhooks", "list"]).expect(0).out.contains("webhooks add URL"));
    let refused = shop.run(&["webhooks", "add", "ftp://shop.example"]).expect(1);
    assert!(
        refused.err.contains("field: url") && refused.err.contains("Nothing was stored"),
        "{}",
        refused.err
    );
    let slip =
        shop.run(&["webhooks", "add", "https://shop.example", "--types", "order.*,order.payed"]).expect(1);
    assert!(slip.err.contains("did you mean order.paid?"), "{}", slip.err);
    let (url, taken) = taker();
    let made = shop.run_json(&["webhooks", "add", &url, "--types", "order.*,sale.paused"]);
    let id = made["id"].as_str().unwrap();
    assert!(made["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(made["types"], json!(["order.*", "sale.paused"]));
    let tested = shop.run(&["webhooks", "test", id]).expect(0).out;
    assert!(tested.starts_with("It took "), "{tested}");
    assert_eq!(taken.load(std::sync::atomic::Ordering::SeqCst), 1, "whatever types it wants");
    let table = shop.run(&["webhooks", "list"]).expect(0).out;
    assert!(table.contains(id) && table.contains("order.*,sale.paused") && table.contains("fine"), "{table}");
    let rotated = shop.run_json(&["webhooks", "rotate", id]);
    assert_ne!(rotated["secret"], made["secret"]);
    let shown = shop.run(&["webhooks", "show", id]).expect(0).out;
    assert!(shown.contains("the one before signs too, until"), "{shown}");
    assert!(!shown.contains("whsec_"), "a secret is shown once");
    let said = shop.run(&["webhooks", "set", id, "--disable"]).expect(0).out;
    assert!(said.contains("state    disabled") && said.contains("lost     0"), "{said}");
    let shown = shop.run(&["webhooks", "show", id]).expect(0).out;
    assert!(shown.contains(&format!("webhooks set {id} --enable")), "what to do next: {shown}");
    let elsewhere = format!("{url}/more");
    let set = shop.run_json(&["webhooks", "set", id, "--url", &elsewhere, "--types", "all", "--enable"]);
    assert_eq!(
        (&set["url"], &set["types"], &set["disabled"]),
        (&json!(elsewhere), &json!([]), &json!(false))
    );
    let set = shop.run_json(&["webhooks", "set", id, "--types", "order.paid,order.refunded"]);
    assert_eq!((&set["url"], &set["types"]), (&json!(elsewhere), &json!(["order.paid", "order.refunded"])));
    shop.run(&["webhooks", "set", id]).expect(2);
    shop.run(&["webhooks", "set", id, "--enable", "--disable"]).expect(2);
    assert_eq!(shop.run_json(&["webhooks", "replay", id])["events"], 0);
    let since = shop.run_json(&["webhooks", "replay", id, "--since", "2020-01-01T00:00:00Z"]);
    assert!(since["events"].is_u64(), "{since}");

    // No port that was free a moment ago: somebody else may be given it.
    let dead = shop.run_json(&["webhooks", "add", "http://127.0.0.1:1/"]);
    let failed = shop.run(&["webhooks", "test", dead["id"].as_str().unwrap()]).expect(1);
    assert!(failed.out.contains("It did not take") && failed.out.contains("log"), "{}", failed.out);
    assert!(shop.run(&["webhooks", "remove", id]).expect(0).out.contains("is removed"));
    let gone = shop.run(&["webhooks", "show", id]).expect(1);
    assert!(gone.err.contains("webhooks list"), "{}", gone.err);
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn buyers_are_kept_out_and_let_in_on_a_running_server() {
    let shop = Shop::new();
    let server = shop.started();
    assert_eq!(shop.run(&["blocks", "list"]).expect(0).out, "Nobody is blocked.\n");
    let nothing = shop.run(&["blocks", "show", "ann"]).expect(1);
    assert!(nothing.err.contains("ann has no block and no strikes"), "{}", nothing.err);
    let given = shop.run_json(&["blocks", "strike", "ann", "--note", "resells"]);
    assert_eq!((&given["cause"], &given["note"]), (&json!("operator"), &json!("resells")));
    let shown = shop.run(&["blocks", "show", "ann"]).expect(0).out;
    for said in ["ann  not blocked\n", "strikes  1 count; 3 block\n", "operator", "resells"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let no_block = shop.run(&["blocks", "lift", "ann"]).expect(1);
    assert!(no_block.err.contains("ann is not blocked") && no_block.err.contains("blocks show ann"));
    shop.run(&["blocks", "strike", "ann"]).expect(0);
    let third = shop.run(&["blocks", "strike", "ann"]).expect(0).out;
    assert!(third.contains("ann  blocked until 20") && third.contains("3 count; 3 block"), "{third}");

    // What is in the way of an address may be in a name.
    let name = "a/b ?安";
    let block = shop.run_json(&["blocks", "set", name, "--until", "72h", "--note", "by\nhand"]);
    assert_eq!((&block["buyer"], &block["note"]), (&json!(name), &json!("by\nhand")));
    assert_eq!(block["until"], block["by_hand_until"]);
    let table = shop.run(&["blocks", "list"]).expect(0).out;
    assert!(table.contains("BLOCKED UNTIL") && table.contains("  by hand\n"), "{table}");
    let listed = shop.run_json(&["blocks", "list"]);
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|one| one["buyer"].clone()).collect();
    assert_eq!(names, [json!(name), json!("ann")]);
    assert_eq!(shop.run_json(&["blocks", "list", "--limit", "1"])["items"].as_array().unwrap().len(), 1);
    assert_eq!(shop.run(&["blocks", "lift", name]).expect(0).out, format!("{name} gets passes again.\n"));

    let no = given["no"].to_string();
    let lifted = shop.run(&["blocks", "lift", "ann", "--strike", &no]).expect(0).out;
    assert_eq!(lifted, format!("Strike {no} of ann is lifted.\n"));
    let again = shop.run(&["blocks", "lift", "ann", "--strike", &no]).expect(1);
    assert!(again.err.contains("lifted before"), "{}", again.err);
    let shown = shop.run_json(&["blocks", "show", "ann"]);
    assert_eq!((&shown["strikes"], &shown["until"]), (&json!(2), &Value::Null));
    assert_eq!(shown["history"].as_array().unwrap().len(), 3, "a lifted one stays to be seen");

    let past = shop.run(&["blocks", "set", "bob", "--until", "2020-01-01T00:00:00Z"]).expect(1);
    assert!(past.err.contains("field: until"), "{}", past.err);
    for wrong in [
        &["blocks", "set", "bob"][..],
        &["blocks", "set", "bob", "--until", "soon"],
        &["blocks", "show", ".."],
    ] {
        shop.run(wrong).expect(2);
    }
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn buyers_are_kept_out_and_let_in_while_no_server_runs() {
    let shop = Shop::new();
    shop.run(&["migrate"]).expect(0);
    shop.run(&["blocks", "set", "ann", "--until", "72h"]).expect(0);
    shop.run(&["blocks", "strike", "bob"]).expect(0);
    let listed = shop.run_json(&["blocks", "list"]);
    assert_eq!((&listed["items"][0]["buyer"], &listed["items"][1]), (&json!("ann"), &Value::Null));
    assert_eq!(shop.run(&["blocks", "lift", "ann"]).expect(0).out, "ann gets passes again.\n");
    assert_eq!(shop.run_json(&["blocks", "show", "bob"])["strikes"], 1);
}

#[test]
fn the_last_audits_are_read_again() {
    let shop = Shop::new();
    let server = shop.started();
    shop.run(&["sale", "create", text(&shop.draft(7))]).expect(0);
    let none = shop.run(&["audit", "--last"]).expect(1);
    assert!(none.out.contains("No audit was made yet"), "{}", none.out);
    let made = shop.run_json(&["audit"]);
    let last = shop.run(&["audit", "--last"]).expect(0).out;
    let head = format!("audit {} of everything\nClean", made["id"].as_str().unwrap());
    assert!(last.contains(&head), "{last}");
    server.terminate().unwrap();
    end(&server).expect(0);

    // Without a server the folder has them; what was not clean then is not clean when it is read again.
    let file = rusqlite::Connection::open(shop.folder.path().join("doorbuster.db")).unwrap();
    file.execute_batch("update offers set live_units = 3").unwrap();
    drop(file);
    let found = shop.run(&["audit", "--json"]).expect(3).json();
    let last = shop.run(&["audit", "--last"]).expect(3).out;
    assert!(last.contains(found["id"].as_str().unwrap()) && last.contains("discrepanc"), "{last}");
    let both = shop.run(&["audit", "--last", "5", "--json"]).expect(3).json();
    assert_eq!(both["items"], json!([found, made]), "the newest first");
    for wrong in [&["audit", "--last", "--repair"][..], &["audit", "--last", "0"]] {
        shop.run(wrong).expect(2);
    }
}

#[test]
fn a_draft_that_is_wrong_names_the_field() {
    let shop = Shop::new();
    shop.run(&["migrate"]).expect(0);
    let path = shop.folder.path().join("night.json");
    let mut draft = crate::app::draft(1);
    draft["offers"][0]["price"]["amount"] = json!(-1);
    std::fs::write(&path, draft.to_string()).unwrap();
    let refused = shop.run(&["sale", "create", text(&path)]).expect(1);
    assert!(refused.err.contains("offers[0].price.amount"), "{}", refused.err);
    draft["offers"][0]["price"]["amount"] = json!(14.99);
    std::fs::write(&path, draft.to_string()).unwrap();
    let refused = shop.run(&["sale", "create", text(&path)]).expect(1);
    assert!(refused.err.contains("minor units (1499 for 14.99)"), "{}", refused.err);
    assert!(!refused.err.contains("column"), "it is not the place in the file: {}", refused.err);
    std::fs::write(&path, "{").unwrap();
    assert!(shop.run(&["sale", "create", text(&path)]).expect(1).err.contains("is no JSON"));
}

#[test]
fn publishing_what_is_over_is_a_warning() {
    let shop = Shop::new();
    let server = shop.started();
    let path = shop.folder.path().join("night.json");
    let mut draft = crate::app::draft(1);
    draft["opens_at"] = json!("2020-01-01T12:00:00Z");
    draft["closes_at"] = json!("2020-01-01T13:00:00Z");
    std::fs::write(&path, draft.to_string()).unwrap();
    let made = shop.run(&["sale", "create", text(&path), "--publish"]).expect(0);
    assert!(made.err.contains("was over at 2020-01-01T13:00:00.000Z: nobody can buy"), "{}", made.err);
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn an_id_of_another_kind_is_named_with_the_command_that_lists_the_right_ones() {
    let shop = Shop::new();
    let server = shop.started();
    let id = "01m7h12ebbvd5va6f5pvjryvdn";
    for (args, what, list) in [
        (&["sale", "show", id][..], "no sale", "sale list"),
        (&["sale", "stats", id], "no sale", "sale list"),
        (&["sale", "stock", id, "+1"], "no offer", "sale show"),
        (&["preheat", id], "no sale", "sale list"),
        (&["orders", "show", id], "no order", "orders list"),
        (&["payments", "retry", id], "no payment", "payments list"),
        (&["webhooks", "test", id], "no webhook", "webhooks list"),
    ] {
        let said = shop.run(args).expect(1).err;
        assert!(
            said.contains(&format!("There is {what} with the id {id}")) && said.contains(list),
            "{args:?}: {said}"
        );
    }
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn a_folder_without_a_ledger_is_begun_by_no_command_but_serve_and_migrate() {
    let shop = Shop::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let draft = elsewhere.path().join("night.json");
    std::fs::write(&draft, crate::app::draft(1).to_string()).unwrap();
    let id = "01m7h12ebbvd5va6f5pvjryvdn";
    for args in [
        &["sale", "list"][..],
        &["sale", "create", text(&draft), "--publish"],
        &["webhooks", "add", "https://shop.example/hooks"],
        &["blocks", "strike", "ann"],
        &["payments", "refund", id],
        &["orders", "export"],
        &["preheat", id],
        &["events", "tail"],
        &["audit", "--repair"],
    ] {
        for folder in [shop.path().to_owned(), format!("{}/typo", shop.path())] {
            let program = with_secrets(program(args).args(["--data-dir", &folder]));
            let refused = end(&program.start().unwrap()).expect(1);
            for said in [&*format!("the data folder {folder},"), "--data-dir", "--server", "doorbuster serve"]
            {
                assert!(refused.err.contains(said), "{args:?}: {said}: {}", refused.err);
            }
            assert_eq!(std::fs::read_dir(shop.folder.path()).unwrap().count(), 0, "{args:?}");
        }
    }
    let refused = shop.run(&["sale", "list", "--server", "http://127.0.0.1:1"]).expect(1);
    assert!(refused.err.contains("no answer from http://127.0.0.1:1"), "{}", refused.err);
}

#[test]
fn whoever_changes_a_folder_without_a_server_is_told_which() {
    let shop = Shop::new();
    shop.run(&["migrate"]).expect(0);
    let made = shop.run(&["sale", "create", text(&shop.draft(1)), "--json"]).expect(0);
    let which = format!("No server runs: working on the data folder {} itself. What follows", shop.path());
    assert!(
        made.err.starts_with(&which) && made.err.ends_with("is done by the next server.\n"),
        "{}",
        made.err
    );
    assert_eq!(made.json()["state"], "draft", "standard output is for the answer");
    assert_eq!(shop.run(&["sale", "list"]).expect(0).err, "", "who only looks changes nothing");
}

const DEMO: [&str; 10] =
    ["demo", "--exit", "--crowd", "300", "--stock", "20", "--open-in", "1s", "--listen", "127.0.0.1:0"];

#[test]
fn the_demo_sells_everything_once_and_says_so() {
    let said = run(&DEMO).expect(0).out;
    assert!(said.contains("20 of 20 sold"), "{said}");
    for promise in ["never oversold", "no unit stranded", "one order per buyer", "everybody got an answer"] {
        assert!(said.contains(&format!("✓ {promise}")), "{promise}: {said}");
    }
    assert!(!said.contains('\x1b'), "no colour where there is no terminal");
    assert!(!said.contains("Buy one yourself"), "nobody can: the shop is closed. {said}");
    let in_a_log = |line: &&str| line.starts_with("opens in ") || line.starts_with("open for ");
    for line in said.lines().filter(|line| !in_a_log(line)) {
        assert!(line.chars().count() <= 80, "wider than a terminal: {line}");
    }
}

#[test]
fn the_demo_says_how_to_buy_when_that_can_be_done() {
    let args = DEMO.into_iter().filter(|arg| *arg != "--exit").collect::<Vec<_>>();
    let demo = program(&args).start().unwrap();
    demo.wait_for_line("The shop stays open", PATIENCE).unwrap();
    let said: Vec<String> = demo.lines().into_iter().map(|line| line.text).collect();
    let place = |part: &str| said.iter().position(|line| line.contains(part));
    let steps = [
        "nobody was early",
        "Buy one yourself",
        "KEY=",
        env!("CARGO_BIN_EXE_doorbuster"),
        "sale stock $OFFER +10 ",
        "/demo/login",
        "/payment -w",
    ];
    let places: Vec<_> =
        steps.iter().map(|step| place(step).unwrap_or_else(|| panic!("{step}: {said:#?}"))).collect();
    assert!(places.is_sorted(), "{said:#?}");
    let value = |name: &str| {
        let words = said.iter().flat_map(|line| line.split_whitespace());
        words.filter_map(|word| word.strip_prefix(name)).next().unwrap().to_owned()
    };
    let (shop, offer, key) = (value("SHOP="), value("OFFER="), value("KEY="));
    let raised = ["sale", "stock", &offer, "+10", "--server", &shop, "--admin-key", &key, "--json"];
    assert_eq!(run(&raised).expect(0).json()["free"], 10);
    demo.terminate().unwrap();
    end(&demo).expect(0);
}

#[test]
fn the_demo_speaks_json_to_scripts() {
    let verdict = run(&[&DEMO[..], &["--json"]].concat()).expect(0).json();
    assert_eq!((&verdict["sold"], &verdict["free"], &verdict["kept"]), (&json!(20), &json!(0), &json!(true)));
    assert_eq!(verdict["buyers"]["won"], 20);
    assert!(verdict["funnel"]["saw_recorded"].as_u64().unwrap() <= 20 && verdict["funnel"]["won"].is_null());
    assert_eq!(verdict["promises"].as_array().unwrap().len(), 5);
    assert!(verdict["order_call_us"]["count"].as_u64().unwrap() >= 280);
}

#[test]
fn the_demo_takes_a_free_port_when_its_own_is_taken_and_leaves_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let demo = program(&["demo", "--crowd", "0", "--listen", &address]).env("TMPDIR", folder.path());
    let demo = demo.start().unwrap();
    demo.wait_for_line("listening on http://127.0.0.1:", PATIENCE).unwrap();
    demo.wait_for_line(&format!("{address} is taken"), PATIENCE).unwrap();
    demo.wait_for_line("The shop stays open", PATIENCE).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    demo.terminate().unwrap();
    end(&demo).expect(0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
